// Destination of a new row. The page table already counts the new rows, so row i of n goes to position length - n + i. A warp
// finds its request by a 32-ary search. A read of a wrong table may be clamped, but a clamped write would overwrite another
// request's rows: nothing is written for a request with invalid entries, or to a page outside the pool.
#pragma once
#include "kernels/paged/page_lookup.cuh"
#include "kernels/kv_cache/append_params.h"

namespace opfacade {

// The last request that starts at or before `row`. It contains the row: earlier requests with the same start are empty.
__device__ __forceinline__ int request_of(const AppendParams& p, int row) {
  int first = 0;
  for (int count = p.batch; count > 1;) {
    const int lane = threadIdx.x % 32, step = (count + 31) / 32;
    const bool starts = lane * step < count && p.append_indptr[first + lane * step] <= row;
    const int passed = max(__popc(__ballot_sync(0xffffffffu, starts)) - 1, 0) * step;
    first += passed;
    count = min(step, count - passed);
  }
  return first;
}

struct NewPlace {
  int position;
  int page;
  int slot;
};

// Returns false if the row has no destination. One warp handles one row. `page` is the entry of the page table, not yet
// checked: see in_pool.
template <class C>
__device__ __forceinline__ bool find_entry(const AppendParams& p, int row, NewPlace& place) {
  const int request = request_of(p, row), start = p.append_indptr[request], stop = p.append_indptr[request + 1];
  const RequestPages<C::kTable, C::kPow2Pages, C::kSafePages> pages(p.table, request);
  const int length = valid_kv_length<C::kTable>(p.table, request);
  place.position = length - (stop - row);
  // Without short circuits, so that one branch waits for all loads.
  const bool clamps = kClampsIndices & ((start < 0) | (start > row) | (stop > p.total_rows) | (stop - start > length));
  if ((row >= stop) | (place.position < 0) | clamps) return false;
  place.page = pages.entry_of(place.position);
  place.slot = pages.slot_of(place.position);
  return true;
}

// True if the page is in the pool. Called last, because the load of the table's entry has the longest latency.
template <class C>
__device__ __forceinline__ bool in_pool(const AppendParams& p, const NewPlace& place) {
  return RequestPages<C::kTable, C::kPow2Pages, C::kSafePages>(p.table, p.table.indices).is_page(place.page);
}

template <class C>
__device__ __forceinline__ bool find_place(const AppendParams& p, int row, NewPlace& place) {
  return find_entry<C>(p, row, place) && in_pool<C>(p, place);
}

}  // namespace opfacade
