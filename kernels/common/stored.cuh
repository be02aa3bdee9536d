// Conversion between the elements of every dtype in memory (Bits) and the values that programs compute with (Value).
#pragma once
#include "kernels/ptx/dtype.cuh"
#include "kernels/ptx/float_math.cuh"
#include "kernels/ptx/fp8.cuh"

namespace opfacade {

struct F64 {};
struct E8M0 {};
struct Bool {};
template <class T>
struct Integer {};
template <int kBytes>
struct UnsignedOf;
template <> struct UnsignedOf<1> { using Type = uint8_t; };
template <> struct UnsignedOf<2> { using Type = uint16_t; };
template <> struct UnsignedOf<4> { using Type = uint32_t; };
template <> struct UnsignedOf<8> { using Type = uint64_t; };

// 16-bit floats. NarrowFloat is for 8-bit floats, which are first widened to f16.
template <class T>
struct Stored {
  using Bits = uint16_t;
  using Value = float;
  static __device__ __forceinline__ float load(Bits x) { return Element<T>::load(x); }
  static __device__ __forceinline__ Bits store(float x) { return Element<T>::store(x); }
};
template <class T>
struct NarrowFloat {
  using Bits = uint8_t;
  using Value = float;
  static __device__ __forceinline__ float load(Bits x) { return f32_of_f16(static_cast<uint16_t>(T::widen(x).x)); }
  static __device__ __forceinline__ Bits store(float x) { return static_cast<Bits>(T::narrow(x, 0.f)); }
};
template <> struct Stored<E4M3> : NarrowFloat<E4M3> {};
template <> struct Stored<E5M2> : NarrowFloat<E5M2> {};
template <>
struct Stored<E8M0> {  // a power of two, 2^-127 to 2^127; a store rounds up and clamps to this range
  using Bits = uint8_t;
  using Value = float;
  static __device__ __forceinline__ float load(Bits x) {
    return __uint_as_float(x == 255 ? 0x7fc00000u : x == 0 ? 0x00400000u : uint32_t(x) << 23);
  }
  static __device__ __forceinline__ Bits store(float x) {
    const uint32_t bits = __float_as_uint(x), above = (bits + 0x7fffffu) >> 23;  // the exponent, rounded up
    if (x != x) return 255;
    if (static_cast<int32_t>(bits) <= 0x00400000) return 0;
    return static_cast<Bits>(above < 254u ? above : 254u);
  }
};
template <>
struct Stored<F32> {
  using Bits = uint32_t;
  using Value = float;
  static __device__ __forceinline__ float load(Bits x) { return __uint_as_float(x); }
  static __device__ __forceinline__ Bits store(float x) { return __float_as_uint(x); }
};
template <>
struct Stored<F64> {
  using Bits = uint64_t;
  using Value = double;
  static __device__ __forceinline__ double load(Bits x) { return double_of_bits(x); }
  static __device__ __forceinline__ Bits store(double x) { return bits_of_double(x); }
};
template <>
struct Stored<Bool> {
  using Bits = uint8_t;
  using Value = bool;
  static __device__ __forceinline__ bool load(Bits x) { return x != 0; }
  static __device__ __forceinline__ Bits store(bool x) { return x; }
};
template <class T>
struct Stored<Integer<T>> {
  using Bits = typename UnsignedOf<sizeof(T)>::Type;
  using Value = T;
  static __device__ __forceinline__ T load(Bits x) { return static_cast<T>(x); }
  static __device__ __forceinline__ Bits store(T x) { return static_cast<Bits>(x); }
};

}  // namespace opfacade
