// Second launch of a split attention: merges the partials of each row in the order of the splits. A prefill has many rows
// and few splits, so a warp takes a row; a decode has few rows and up to hundreds of splits, so a block takes a row and
// its warps take splits in turn.
#pragma once
#include "kernels/attention/decode_params.h"
#include "kernels/attention/prefill_params.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/merge.cuh"

namespace opfacade {

constexpr int kMergeWarps = 4;

template <class C>
__device__ __forceinline__ void merge_prefill(const PrefillParams& p) {
  wait_for_previous();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kMergeWarps + threadIdx.x / 32;  // over [rows, heads]
  const int64_t row = index / p.heads, head = index % p.heads, plane = static_cast<int64_t>(p.total_rows) * p.heads;
  if (row >= p.total_rows || row >= p.q_indptr[p.batch]) return;
  const RowStates states{p.partial_o + index * C::kHeadDim, p.partial_lse + index, plane * C::kHeadDim, plane, p.num_splits};
  const RowWeights weights = row_weights(states);
  char* dst = static_cast<char*>(p.o) + row * p.o_row_stride + head * p.o_head_stride;
#pragma unroll 1
  for (int column = threadIdx.x % 32 * 4; column < C::kHeadDim; column += 128) {
    float sum[4] = {};
    add_states<F32>(states, weights, column, 0, 1, sum);
    store_merged<typename C::T>(dst, column, sum, weights.total, p.o_aligned);
  }
  if constexpr (C::kReturnLse)
    if (threadIdx.x % 32 == 0) p.lse[index] = merged_lse(weights);
}

// Where the partials of (head, request) lie; see decode_schedule.cuh.
template <class C>
__device__ __forceinline__ RowStates decode_states(const DecodeParams& p, int request, int head) {
  const int in_group = head % C::kGroup, head_blocks = p.kv_heads * C::kHeadBlocks;
  const int block = head / C::kGroup * C::kHeadBlocks + in_group / 16;
  const int first_unit = p.plan[2 * request];
  const int64_t slot = (static_cast<int64_t>(first_unit) * head_blocks + block) * C::kRows + in_group % 16;
  const int64_t stride = static_cast<int64_t>(head_blocks) * C::kRows;
  const int stored = p.max_items / head_blocks - first_unit;  // lengths beyond the bound must not lead outside
  return {p.partial_o + slot * C::kHeadDim, p.partial_lse + slot, stride * C::kHeadDim, stride,
          min(p.plan[2 * request + 1], stored)};
}

template <class C>
__device__ __forceinline__ void merge_decode(const DecodeParams& p) {
  wait_for_previous();
  const int head = blockIdx.x, request = blockIdx.y, warp = threadIdx.x / 32;
  if (p.plan[2 * request + 1] == 1) return;  // written by the attention itself
  const RowStates states = decode_states<C>(p, request, head);
  const RowWeights weights = row_weights(states);
  __shared__ float parts[kMergeWarps][C::kHeadDim];
#pragma unroll 1
  for (int column = threadIdx.x % 32 * 4; column < C::kHeadDim; column += 128) {
    float sum[4] = {};
    add_states<F32>(states, weights, column, warp, kMergeWarps, sum);
    for (int i = 0; i < 4; ++i) parts[warp][column + i] = sum[i];
  }
  __syncthreads();
  char* dst = static_cast<char*>(p.o) + request * p.o_row_stride + head * p.o_head_stride;
  for (int column = threadIdx.x; column < C::kHeadDim; column += kMergeWarps * 32) {
    float sum[1] = {0.f};
    for (int w = 0; w < kMergeWarps; ++w) sum[0] += parts[w][column];
    store_merged<typename C::T>(dst, column, sum, weights.total, true);
  }
  if constexpr (C::kReturnLse)
    if (threadIdx.x == 0) p.lse[static_cast<int64_t>(request) * p.heads + head] = merged_lse(weights);
}

}  // namespace opfacade
