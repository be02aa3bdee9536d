// The amount of work of a decode, which the device computes from the lengths.
#pragma once
#include "kernels/attention/decode/schedule/cut.cuh"
#include "kernels/attention/decode/params.h"
#include "kernels/paged/page_lookup.cuh"

namespace opfacade {

// The number of head blocks in a work item; a kernel may map head blocks to another axis of the grid instead.
template <class C>
__device__ __forceinline__ int head_blocks(const DecodeParams& p) {
  return p.kv_heads * C::kItemHeadBlocks;
}

template <class C>
__device__ __forceinline__ int first_visible(const DecodeParams& p, int kv_len) {
  return C::kWindow ? max(0, kv_len - 1 - p.window_left) : 0;
}

template <class C>
__device__ __forceinline__ int schedule_tiles(const DecodeParams& p, int kv_len) {
  return (kv_len + kScheduleTile - 1) / kScheduleTile - first_visible<C>(p, kv_len) / kScheduleTile;
}

// The count of one request: its splits with fixed chunks, otherwise its tiles. The count is at least 1, because the output of a
// request without keys must also be written.
template <class C>
__device__ __forceinline__ int count_of(const DecodeParams& p, int kv_len) {
  if constexpr (C::kSplit != SplitMode::kFixed) return max(1, schedule_tiles<C>(p, kv_len));
  return fixed_splits(kv_len, first_visible<C>(p, kv_len), p.chunk);
}

__device__ __forceinline__ int inclusive_scan(int value) {
  for (int delta = 1; delta < 32; delta *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, value, delta);
    if (threadIdx.x % 32 >= delta) value += before;
  }
  return value;
}

}  // namespace opfacade
