// 8-bit floating point as bit patterns. Every value of both formats is an f16.
#pragma once
#include "kernels/common/ptx.cuh"

namespace opfacade {

// widen: two values of the low 16 bits, as two f16. narrow: the nearest to two f32.
struct E4M3 {
  static __device__ __forceinline__ uint16_t narrow(float lo, float hi) { return e4m3x2_of(lo, hi); }
  static __device__ __forceinline__ uint32_t widen(uint32_t pair) { return f16x2_of_e4m3x2(static_cast<uint16_t>(pair)); }
};

struct E5M2 {
  static __device__ __forceinline__ uint16_t narrow(float lo, float hi) { return e5m2x2_of(lo, hi); }
  static __device__ __forceinline__ uint32_t widen(uint32_t pair) { return f16x2_of_e5m2x2(static_cast<uint16_t>(pair)); }
};

// Sixteen values as two chunks of eight f16.
template <class Format>
__device__ __forceinline__ void widen_16(uint4 raw, uint4 (&wide)[2]) {
  wide[0] = make_uint4(Format::widen(raw.x & 0xffff), Format::widen(raw.x >> 16), Format::widen(raw.y & 0xffff),
                       Format::widen(raw.y >> 16));
  wide[1] = make_uint4(Format::widen(raw.z & 0xffff), Format::widen(raw.z >> 16), Format::widen(raw.w & 0xffff),
                       Format::widen(raw.w >> 16));
}

}  // namespace opfacade
