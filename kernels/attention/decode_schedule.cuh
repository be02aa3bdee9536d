// Which request, heads and keys a decode block works on, found from the lengths on the device. A unit is one split of one
// request, an item one block of heads of a unit; units are numbered request by request. Every warp finds its item on its
// own (a lane adds up a run of requests, one scan finds the run, another the request), which costs no barrier.
#pragma once
#include "kernels/attention/decode_params.h"
#include "kernels/common/page_lookup.cuh"

namespace opfacade {

struct WorkItem {
  int request;
  int kv_head;
  int head_block;  // of this kv head
  int first_unit;  // of the request
  int splits;
  int split;
  int first_key;   // first visible key
  int begin;       // where this item's tiles start; may precede first_key
  int end;
};

constexpr int kShareTokens = 64;   // auto splits are multiples of this
constexpr int kMinChunk = 128;     // and at least this

template <class C>
__device__ __forceinline__ int first_visible(const DecodeParams& p, int kv_len) {
  return C::kWindow ? max(0, kv_len - 1 - p.window_left) : 0;
}

template <class C>
__device__ __forceinline__ int share_tiles(const DecodeParams& p, int kv_len) {
  return (kv_len + kShareTokens - 1) / kShareTokens - first_visible<C>(p, kv_len) / kShareTokens;
}

// With a fixed chunk a request is cut by its own length alone: these two see no batch, so that none can change its bits.
__device__ __forceinline__ int fixed_splits(int kv_len, int first_key, int chunk) {
  const int chunks = kv_len == 0 ? 0 : (kv_len - 1) / chunk + 1;
  return max(1, chunks - first_key / chunk);
}

__device__ __forceinline__ void set_fixed_keys(int kv_len, int chunk, WorkItem& item) {
  const int start = (item.first_key / chunk + item.split) * chunk;
  item.begin = start + max(item.first_key - start, 0) / kShareTokens * kShareTokens;
  item.end = kv_len - start > chunk ? start + chunk : kv_len;
}

template <class C>
__device__ __forceinline__ int num_splits(const DecodeParams& p, int request, int chunk_tiles) {
  const int kv_len = kv_length<C::kTable>(p.table, request);
  if constexpr (C::kSplit == SplitMode::kAuto)
    return max(1, (share_tiles<C>(p, kv_len) + chunk_tiles / 2) / chunk_tiles);  // nearest: up would start a second wave
  return fixed_splits(kv_len, first_visible<C>(p, kv_len), p.chunk);
}

__device__ __forceinline__ int inclusive_scan(int value) {
  for (int delta = 1; delta < 32; delta *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, value, delta);
    if (threadIdx.x % 32 >= delta) value += before;
  }
  return value;
}

// Tiles per split so that all requests together make about target_ctas items.
template <class C>
__device__ __forceinline__ int auto_chunk(const DecodeParams& p, int run, int run_end) {
  int tiles = 0;
#pragma unroll 4
  for (int request = run; request < run_end; ++request)
    tiles += share_tiles<C>(p, kv_length<C::kTable>(p.table, request));
  tiles = __shfl_sync(0xffffffffu, inclusive_scan(tiles), 31);
  const int64_t items = static_cast<int64_t>(tiles) * p.kv_heads * C::kHeadBlocks;
  return max(kMinChunk / kShareTokens, static_cast<int>((items + p.target_ctas - 1) / p.target_ctas));
}

// Fills request, first_unit and splits; false if there is no such unit.
template <class C>
__device__ __forceinline__ bool find_unit(const DecodeParams& p, int unit, WorkItem& item) {
  const int lane = threadIdx.x % 32, length = (p.batch + 31) / 32;
  int run = min(lane * length, p.batch), run_end = min(run + length, p.batch);
  int chunk_tiles = 0;
  if constexpr (C::kSplit == SplitMode::kAuto) chunk_tiles = auto_chunk<C>(p, run, run_end);
  int units = 0;
#pragma unroll 4
  for (int request = run; request < run_end; ++request) units += num_splits<C>(p, request, chunk_tiles);
  const int units_end = inclusive_scan(units);
  const unsigned after = __ballot_sync(0xffffffffu, units_end > unit);
  if (after == 0) return false;
  const int owner = __ffs(after) - 1;
  int base = __shfl_sync(0xffffffffu, units_end - units, owner);
  run = __shfl_sync(0xffffffffu, run, owner);
  run_end = __shfl_sync(0xffffffffu, run_end, owner);
  for (;; run += 32) {
    const int splits = run + lane < run_end ? num_splits<C>(p, run + lane, chunk_tiles) : 0;
    const int end = base + inclusive_scan(splits);
    const unsigned beyond = __ballot_sync(0xffffffffu, end > unit);
    if (beyond == 0) {
      base = __shfl_sync(0xffffffffu, end, 31);
      continue;
    }
    const int found = __ffs(beyond) - 1;
    item.request = run + found;
    item.splits = __shfl_sync(0xffffffffu, splits, found);
    item.first_unit = __shfl_sync(0xffffffffu, end, found) - item.splits;
    return true;
  }
}

template <class C>
__device__ __forceinline__ void set_keys(const DecodeParams& p, WorkItem& item) {
  const int kv_len = kv_length<C::kTable>(p.table, item.request);
  item.first_key = first_visible<C>(p, kv_len);
  if constexpr (C::kSplit == SplitMode::kFixed) {
    set_fixed_keys(kv_len, p.chunk, item);
  } else {
    const int share = (share_tiles<C>(p, kv_len) + item.splits - 1) / item.splits * kShareTokens;
    item.begin = item.first_key / kShareTokens * kShareTokens + item.split * share;
    item.end = min(kv_len, item.begin + share);
  }
}

// False if this block is beyond the last item.
template <class C>
__device__ __forceinline__ bool find_item(const DecodeParams& p, WorkItem& item) {
  const int head_blocks = p.kv_heads * C::kHeadBlocks;
  const int unit = blockIdx.x / head_blocks, head = blockIdx.x % head_blocks;
  item.kv_head = head / C::kHeadBlocks;
  item.head_block = head % C::kHeadBlocks;
  item.request = item.first_unit = unit;
  item.splits = 1;
  if constexpr (C::kSplit != SplitMode::kOff)
    if (!find_unit<C>(p, unit, item)) return false;
  item.split = unit - item.first_unit;
  set_keys<C>(p, item);
  if constexpr (C::kSplit != SplitMode::kOff)
    if (item.split == 0 && head == 0 && threadIdx.x == 0) {
      p.plan[2 * item.request] = item.first_unit;
      p.plan[2 * item.request + 1] = item.splits;
    }
  return true;
}

}  // namespace opfacade
