// Parts of an online softmax in base 2.
#pragma once
#include "kernels/ptx/ptx.cuh"

namespace opfacade {

constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// The maximum of a row without keys is -inf; 0 replaces it, because -inf - (-inf) is NaN.
__device__ __forceinline__ float finite_max(float row_max) { return row_max == minus_infinity() ? 0.f : row_max; }

// Replaces a zero score factor by 2^-100: all keys keep equal weight, and a masked score of -inf does not become NaN.
__device__ __forceinline__ float never_zero(float factor) { return factor == 0.f ? 0x1p-100f : factor; }

// Reductions over the four threads that share a row of an mma tile.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ bool quad_any(bool is) { return (__ballot_sync(0xffffffffu, is) >> (threadIdx.x & 28) & 15) != 0; }
__device__ __forceinline__ float warp_max(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
  return x;
}
__device__ __forceinline__ float warp_sum(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// The natural-log lse of a row with maximum `row_max` (raw units) and sum `row_sum`; -inf if the row has no visible key.
__device__ __forceinline__ float row_lse(float row_max, float row_sum, float scale) {
  return row_sum == 0.f ? minus_infinity() : fmaf(finite_max(row_max), scale, logf(row_sum));
}

__device__ __forceinline__ float reciprocal_or_zero(float sum) { return sum == 0.f ? 0.f : 1.f / sum; }

}  // namespace opfacade
