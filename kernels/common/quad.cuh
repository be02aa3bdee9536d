// Four neighbouring threads, which share the rows of a fragment.
#pragma once
#include <stdint.h>

namespace opfacade {

// Word `row` of thread `column` of a quad becomes word `column` of thread `row`.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const uint32_t theirs = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + step], step);
      if (upper) w[i] = theirs; else w[i + step] = theirs;
    }
  }
}

}  // namespace opfacade
