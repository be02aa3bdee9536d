// 8-bit floating point as bit patterns. Every value of both formats is an f16.
#pragma once
#include <stdint.h>

namespace opfacade {

// widen: two values of the low 16 bits, as two f16.
struct E4M3 {
  static __device__ __forceinline__ uint32_t widen(uint32_t pair) {
    uint32_t out;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(static_cast<uint16_t>(pair)));
    return out;
  }
};

struct E5M2 {
  static __device__ __forceinline__ uint32_t widen(uint32_t pair) {
    uint32_t out;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(out) : "h"(static_cast<uint16_t>(pair)));
    return out;
  }
};

}  // namespace opfacade
