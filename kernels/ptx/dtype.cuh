// 16-bit floating point as bit patterns. Conversions use PTX, because cuda_bf16.h takes longer to compile than a kernel.
#pragma once
#include "kernels/ptx/ptx.cuh"

namespace opfacade {

struct F16 {
  static constexpr uint32_t kExponent = 0x7c007c00u;     // exponent bits of both halves
  static constexpr uint32_t kExponentUlp = 0x04000400u;  // lowest exponent bit of both halves

  static __device__ __forceinline__ uint32_t pack(float lo, float hi) {
    return f16x2_of(lo, hi);
  }
  static __device__ __forceinline__ float unpack(uint16_t bits) {
    return f32_of_f16(bits);
  }
};

struct BF16 {
  static constexpr uint32_t kExponent = 0x7f807f80u;
  static constexpr uint32_t kExponentUlp = 0x00800080u;

  static __device__ __forceinline__ uint32_t pack(float lo, float hi) {
    return bf16x2_of(lo, hi);
  }
  static __device__ __forceinline__ float unpack(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
};

struct F32 {};

// Conversion of a tensor element to and from f32.
template <class T>
struct Element {
  using Bits = uint16_t;
  static __device__ __forceinline__ float load(Bits x) { return T::unpack(x); }
  static __device__ __forceinline__ Bits store(float x) { return static_cast<Bits>(T::pack(x, 0.f)); }
};
template <>
struct Element<F32> {
  using Bits = float;
  static __device__ __forceinline__ float load(Bits x) { return x; }
  static __device__ __forceinline__ Bits store(float x) { return x; }
};

// Sets bit 15 of each half that is Inf or NaN: the exponent field overflows into the sign bit.
template <class T>
__device__ __forceinline__ uint32_t nonfinite_halves(uint32_t pair) {
  return ((pair & T::kExponent) + T::kExponentUlp) & 0x80008000u;
}

// 0xffff for each half whose bit 15 is set in `flags`.
__device__ __forceinline__ uint32_t halves_mask(uint32_t flags) {
  return ((flags >> 15) & 0x00010001u) * 0xffffu;
}

}  // namespace opfacade
