// The schedule of fixed chunks. A CTA usually computes one chunk. The bounds of the descriptor determine the grid and the
// slots, and requests that share pages can have more chunks than the grid has CTAs. In this case a CTA takes whole work units
// and computes all chunks of a unit one after the other, in its own slots, so that a request has the same bits in every batch.
#pragma once
#include "kernels/attention/decode/schedule/schedule.cuh"

namespace opfacade {

// The number of chunks of the longest request.
template <class C>
__device__ __forceinline__ int max_splits(const DecodeParams& p, int chunk) {
  int most = 0;
#pragma unroll 1
  for (int request = threadIdx.x % 32; request < p.batch; request += 32) {
    const int kv_len = kv_length<C::kTable>(p.table, request);
    most = max(most, fixed_splits(kv_len, first_visible<C>(p, kv_len), chunk));
  }
  return __reduce_max_sync(0xffffffffu, most);
}

template <class C>
class Schedule<C, SplitMode::kFixed> {
 public:
  __device__ __forceinline__ explicit Schedule(const DecodeParams& p) : p_(p) {}

  __device__ __forceinline__ bool next(WorkItem& item) {
    if (!is_started()) {
      own_slots_ = kNone;
      const BatchSums<C> sums(p_);
      if (fits(sums.total())) return find_chunk(sums, item);
      start_owning_units();
    } else {
      ++partial_;
    }
    return owns_units() && next_partial(item);
  }

  // No partial is ever outside the slots, whatever the lengths.
  __device__ __forceinline__ Partials partials_of(const WorkItem& item) const {
    if (item.count == 1) return {0, 1, 0, 0, 0};
    if (owns_units()) return {partial_, item.count, item.unit_start, item.unit_start + 1, 1};
    const int blocks = head_blocks<C>(p_), first_slot = item.unit_start * blocks + item.head;
    const int count = min(item.count, (p_.slots - first_slot + blocks - 1) / blocks);
    return {partial_, count, first_slot, first_slot + blocks, blocks};
  }

  __device__ __forceinline__ bool is_started() const { return own_slots_ != 0; }
  // True if this CTA computes every partial of its work units.
  __device__ __forceinline__ bool owns_units() const { return own_slots_ > 0; }

 private:
  static constexpr int kNone = -1;

  __device__ __forceinline__ static int index() { return blockIdx.x / kCtasPerItem<C>; }

  // True if each chunk has a slot and a counter can count the chunks of one work unit.
  __device__ __forceinline__ bool fits(int total) const {
    const int split_slots = p_.slots / head_blocks<C>(p_);
    if (total > split_slots) return false;
    return split_slots - p_.batch < kMaxPartials || max_splits<C>(p_, p_.chunk) <= kMaxPartials;
  }

  __device__ __forceinline__ bool find_chunk(const BatchSums<C>& sums, WorkItem& item) {
    const int blocks = head_blocks<C>(p_), split_index = index() / blocks;
    RequestPosition place;
    if (!sums.find(p_, split_index, place)) return false;
    item.request = place.request;
    item.head = index() % blocks;
    item.unit_start = place.before;
    item.count = place.count;
    partial_ = split_index - place.before;
    set_keys(item, kv_length<C::kTable>(p_.table, item.request), p_.chunk);
    return true;
  }

  __device__ __forceinline__ void start_owning_units() {
    const int most = min(max_splits<C>(p_, p_.chunk), min(p_.slots, kMaxPartials));
    if (index() < p_.slots / most) own_slots_ = most, unit_ = index();
  }

  // Sets `item` to the next partial of the current work unit, or to the first of the next unit.
  __device__ __forceinline__ bool next_partial(WorkItem& item) {
#pragma unroll 1
    while (unit_ < p_.batch * head_blocks<C>(p_)) {
      open_unit(item);
      if (partial_ < item.count) return true;
      partial_ = 0, unit_ += p_.slots / own_slots_;
    }
    return false;
  }

  // Doubles the chunk size until the unit fits the slots of the CTA. Only a request that exceeds its bound needs more than one
  // chunk size.
  __device__ __forceinline__ void open_unit(WorkItem& item) {
    const int blocks = head_blocks<C>(p_);
    item.request = unit_ / blocks;
    item.head = unit_ % blocks;
    item.unit_start = index() * own_slots_;
    const int kv_len = kv_length<C::kTable>(p_.table, item.request), first_key = first_visible<C>(p_, kv_len);
    int chunk = p_.chunk;
#pragma unroll 1
    while (fixed_splits(kv_len, first_key, chunk) > own_slots_) chunk = larger_chunk(chunk);
    item.count = fixed_splits(kv_len, first_key, chunk);
    set_keys(item, kv_len, chunk);
  }

  __device__ __forceinline__ void set_keys(WorkItem& item, int kv_len, int chunk) const {
    item.first_key = first_visible<C>(p_, kv_len);
    set_fixed_keys(kv_len, chunk, partial_, item);
  }

  const DecodeParams& p_;
  int own_slots_ = 0;  // slots of this CTA if it owns whole work units; 0 before the lengths are read
  int unit_ = 0, partial_ = 0;
};

}  // namespace opfacade
