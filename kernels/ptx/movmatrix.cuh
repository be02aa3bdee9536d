// Transpose of a fragment across the threads of a warp.
#pragma once
#include <stdint.h>

namespace opfacade {

// Transposes an 8 x 8 matrix of 16-bit elements: thread (g = lane / 4, t = lane % 4) passes columns 2t, 2t + 1 of row g and
// receives rows 2t, 2t + 1 of column g.
__device__ __forceinline__ uint32_t transposed_8x8(uint32_t pair) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}

}  // namespace opfacade
