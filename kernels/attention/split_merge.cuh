// The second launch of a split prefill merges the partials of each row in the order of the splits. One warp merges one row,
// because there are many rows and few splits. (A decode merges in its own launch: decode/schedule/join.cuh.)
#pragma once
#include "kernels/attention/prefill/finish.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/common/merge.cuh"

namespace opfacade {

constexpr int kMergeWarps = 4;

template <class C>
__device__ __forceinline__ void merge_prefill(const PrefillParams& p) {
  wait_for_previous();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kMergeWarps + threadIdx.x / 32;  // index over [rows, heads]
  const int64_t row = index / p.heads, head = index % p.heads, plane = static_cast<int64_t>(p.total_rows) * p.heads;
  if (row >= p.total_rows || row < p.q_indptr[0] || row >= p.q_indptr[p.batch]) return;  // the row belongs to no request
  const RowStates states{p.partial_o + index * C::kHeadDimVo, p.partial_lse + index, plane * C::kHeadDimVo, plane, p.num_splits};
  const RowWeights weights = row_weights(states);
  const Sunk sunk = merged_row<C>(p, head, merged_lse(weights));
  char* dst = static_cast<char*>(p.o) + row * p.o_row_stride + head * p.o_head_stride;
#pragma unroll 1
  for (int column = threadIdx.x % 32 * 4; column < C::kHeadDimVo; column += 128) {
    float sum[4] = {};
    add_states<F32>(states, weights, column, 0, 1, sum);
    store_merged<typename C::Q>(dst, column, sum, reciprocal_or_zero(weights.total) * sunk.factor, p.o_aligned);
  }
  if constexpr (C::kReturnLse)
    if (threadIdx.x % 32 == 0) p.lse[index] = sunk.lse;
}

}  // namespace opfacade
