// Where a new row goes. The page table already counts the new rows, so row i of n goes to position length - n + i. A warp
// finds its request by a 32-ary search.
#pragma once
#include "kernels/common/page_lookup.cuh"
#include "kernels/kv_cache/append_params.h"

namespace opfacade {

// The last request that starts at or before `row`: the one that has it, since empty ones before it start there too.
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

// False if the row is no request's. One row for a whole warp.
template <class C>
__device__ __forceinline__ bool find_place(const AppendParams& p, int row, NewPlace& place) {
  const int request = request_of(p, row), stop = p.append_indptr[request + 1];
  const RequestPages<C::kTable, C::kPow2Pages, C::kSafePages> pages(p.table, request);
  place.position = kv_length<C::kTable>(p.table, request) - (stop - row);
  if (row >= stop || place.position < 0) return false;
  place.page = pages.page_of(place.position);
  place.slot = pages.slot_of(place.position);
  return true;
}

}  // namespace opfacade
