// The destination of K and V of a row: from the page table of its request, as in append, or from the slot of the row.
#pragma once
#include "kernels/kv_cache/place.cuh"
#include "kernels/rotary/qkv_prepare_params.h"

namespace opfacade {

// kNone: the row belongs to no request and is not written. kDropped: only q is written.
enum class Goes { kNone, kDropped, kStored };

template <class C>
__device__ __forceinline__ Goes find_destination(const QkvPrepareParams& p, int64_t row, NewPlace& place) {
  if constexpr (C::kSlots) {
    const int64_t slot = p.slots[row], size = p.cache.table.page_size;
    if (slot < 0 || slot >= size * p.cache.table.num_pages) return Goes::kDropped;
    place.page = static_cast<int>(slot / size), place.slot = static_cast<int>(slot % size);
    return Goes::kStored;
  } else {
    if (p.cache.batch == 0 || !find_entry<C>(p.cache, static_cast<int>(row), place)) return Goes::kNone;
    return in_pool<C>(p.cache, place) ? Goes::kStored : Goes::kDropped;
  }
}

}  // namespace opfacade
