// 8-bit floating point as bit patterns. f16 represents every value of both formats.
#pragma once
#include "kernels/ptx/ptx.cuh"

namespace opfacade {

// widen: four fp8 values to f16, exact. narrow: two f32 values to the nearest fp8.
struct E4M3 {
  static __device__ __forceinline__ uint16_t narrow(float lo, float hi) { return e4m3x2_of(lo, hi); }
  static __device__ __forceinline__ uint2 widen(uint32_t word) { return f16x4_of_e4m3x4(word); }
};

struct E5M2 {
  static __device__ __forceinline__ uint16_t narrow(float lo, float hi) { return e5m2x2_of(lo, hi); }
  static __device__ __forceinline__ uint2 widen(uint32_t word) { return f16x4_of_e5m2x4(word); }
};

// Converts sixteen values to two chunks of eight f16.
template <class Format>
__device__ __forceinline__ void widen_16(uint4 raw, uint4 (&wide)[2]) {
  const uint2 a = Format::widen(raw.x), b = Format::widen(raw.y), c = Format::widen(raw.z), d = Format::widen(raw.w);
  wide[0] = make_uint4(a.x, a.y, b.x, b.y);
  wide[1] = make_uint4(c.x, c.y, d.x, d.y);
}

}  // namespace opfacade
