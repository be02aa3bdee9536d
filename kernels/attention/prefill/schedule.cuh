// The rows and keys of a prefill CTA, which the device computes from the lengths. A request of n packed rows (token-major, with
// the heads of one kv head innermost) owns the slots from floor(first packed row / kTileRows) + request on. This start
// increases from request to request and reserves ceil(n / kTileRows) slots, so no plan is needed.
#pragma once
#include "kernels/attention/prefill/params.h"
#include "kernels/paged/page_lookup.cuh"

namespace opfacade {

struct RowTile {
  int request;
  int q_start;    // first row of the request in q
  int q_len;
  int kv_len;
  int first;      // first packed row of the tile, within the request
  int rows;       // packed rows of the request in this tile
};

struct KvRange {
  int begin;  // first key of the tiles; may precede the first visible key
  int end;
};

// The range of a request's rows in q and o.
__device__ __forceinline__ IndexSpan q_rows(const PrefillParams& p, int request) {
  return clamped_span(p.q_indptr, request, p.total_rows);
}

template <class C>
__device__ __forceinline__ int slot_start(const PrefillParams& p, int request) {
  const int first = clamped(p.q_indptr[request], 0, p.total_rows);
  return static_cast<int>(static_cast<int64_t>(first) * C::kGroup / C::kTileRows) + request;
}

// The last request that starts at or before `slot`. Each warp does a 32-ary search.
template <class C>
__device__ __forceinline__ int find_request(const PrefillParams& p, int slot) {
  const int lane = threadIdx.x % 32;
  int first = 0;
  for (int count = p.batch; count > 1;) {
    const int step = (count + 31) / 32;
    const bool starts = lane * step < count && slot_start<C>(p, first + lane * step) <= slot;
    const int passed = max(__popc(__ballot_sync(0xffffffffu, starts)) - 1, 0) * step;
    first += passed;
    count = min(step, count - passed);
  }
  return first;
}

// Sets `tile` to tile `number` of tile.request. Returns false if the request has no such tile.
template <class C>
__device__ __forceinline__ bool set_row_tile(const PrefillParams& p, int number, RowTile& tile) {
  const IndexSpan rows = q_rows(p, tile.request);
  tile.q_start = rows.first;
  tile.q_len = rows.count();
  tile.first = number * C::kTileRows;
  tile.rows = min(tile.q_len * C::kGroup - tile.first, C::kTileRows);
  // A decreasing indptr can lead the search to a request that starts later.
  if (tile.rows <= 0 || (kClampsIndices && number < 0)) return false;
  tile.kv_len = kv_length<C::kTable>(p.table, tile.request);
  return true;
}

// Returns false if the slot is past the tiles of its request. Late tiles come first, because they are the longest under a
// causal mask.
template <class C>
__device__ __forceinline__ bool find_row_tile(const PrefillParams& p, RowTile& tile) {
  const int slot = gridDim.x - 1 - blockIdx.x;
  tile.request = find_request<C>(p, slot);
  return set_row_tile<C>(p, slot - slot_start<C>(p, tile.request), tile);
}

template <class C>
__device__ __forceinline__ KvRange visible_range(const PrefillParams& p, const RowTile& tile) {
  const int offset = tile.kv_len - tile.q_len;
  KvRange range{0, tile.kv_len};
  if constexpr (C::kCausal) range.end = min(range.end, (tile.first + tile.rows - 1) / C::kGroup + offset + 1);
  if constexpr (C::kWindow) range.begin = max(0, tile.first / C::kGroup + offset - p.window_left);
  return range;
}

// With fixed chunks the range depends only on the number of the split, so the bits of a request do not depend on the batch.
template <class C>
__device__ __forceinline__ KvRange fixed_range(KvRange range, int split, int chunk) {
  const int start = split * chunk;
  const int end = range.end - start > chunk ? start + chunk : range.end;
  return {start + max(range.begin - start, 0) / C::kTileKv * C::kTileKv, end};
}

// The visible range of split blockIdx.z.
template <class C>
__device__ __forceinline__ KvRange split_range(const PrefillParams& p, KvRange range) {
  const int split = blockIdx.z;
  if constexpr (C::kSplit == SplitMode::kFixed) {
    const KvRange part = fixed_range<C>(range, split, p.chunk);
    return {part.begin, split == p.num_splits - 1 ? range.end : part.end};  // the last split takes all remaining keys
  }
  range.begin = range.begin / C::kTileKv * C::kTileKv;
  if constexpr (C::kSplit == SplitMode::kAuto) {
    const int tiles = max(range.end - range.begin + C::kTileKv - 1, 0) / C::kTileKv;
    const int share = (tiles + p.num_splits - 1) / p.num_splits * C::kTileKv;
    range.begin += split * share;
    range.end = min(range.end, range.begin + share);
  }
  return range;
}

// The visible keys [begin, end) of one row, limited to the split.
template <class C>
__device__ __forceinline__ KvRange row_range(const PrefillParams& p, const RowTile& tile, const KvRange& range, int row) {
  const int aligned_token = (tile.first + row) / C::kGroup + tile.kv_len - tile.q_len;
  KvRange seen = range;
  if constexpr (C::kCausal) seen.end = min(seen.end, aligned_token + 1);
  if constexpr (C::kWindow) seen.begin = max(seen.begin, aligned_token - p.window_left);
  return seen;
}

// True if at least one key of [start, start + kTileKv) is invisible to at least one row of the tile.
template <class C>
__device__ __forceinline__ bool needs_mask(const PrefillParams& p, const RowTile& tile, const KvRange& range, int start) {
  const KvRange first = row_range<C>(p, tile, range, 0);
  const KvRange last = row_range<C>(p, tile, range, tile.rows - 1);
  return start + C::kTileKv > first.end || start < last.begin;
}

}  // namespace opfacade
