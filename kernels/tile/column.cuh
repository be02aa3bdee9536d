// Reductions over the eight threads that share a column of an mma fragment: equal lane % 4.
#pragma once

namespace opfacade {

__device__ __forceinline__ float column_max(float x) {
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
  return x;
}
__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

}  // namespace opfacade
