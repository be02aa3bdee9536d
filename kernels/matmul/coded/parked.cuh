// Totals of a warpgroup in shared memory, while it sums a segment of k in the registers. Each thread writes and reads its own.
#pragma once
#include "kernels/matmul/coded/rings.cuh"

namespace opfacade {

// The totals of this thread; chunks of four are kWarpgroup chunks apart, so that a warp has no bank conflicts.
template <class C>
__device__ __forceinline__ float4* parked(int warpgroup) {
  return reinterpret_cast<float4*>(dynamic_shared() + CodedShared<C>::partial(warpgroup)) + threadIdx.x % kWarpgroup;
}

template <class C>
__device__ __forceinline__ void park(const float (&sums)[C::kTokens / 2], int warpgroup) {
  float4* to = parked<C>(warpgroup);
#pragma unroll
  for (int i = 0; i < C::kTokens / 8; ++i) to[i * kWarpgroup] = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
}

// Adds the sums of a segment to the totals before it.
template <class C>
__device__ __forceinline__ void add_parked(float (&sums)[C::kTokens / 2], int warpgroup) {
  const float4* from = parked<C>(warpgroup);
#pragma unroll
  for (int i = 0; i < C::kTokens / 8; ++i) {
    const float4 before = from[i * kWarpgroup];
    sums[4 * i] = before.x + sums[4 * i], sums[4 * i + 1] = before.y + sums[4 * i + 1];
    sums[4 * i + 2] = before.z + sums[4 * i + 2], sums[4 * i + 3] = before.w + sums[4 * i + 3];
  }
}

}  // namespace opfacade
