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

}  // namespace opfacade
