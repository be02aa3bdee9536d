// Which chunks of a fixed size a decode block works on. Usually one. The grid and its slots are as many as bounds say; where
// requests share pages they may have more chunks than that together. Then a block takes whole runs in turn and all chunks of
// each one after the other, in slots of its own, so that every request keeps the bits that it has in a small batch.
#pragma once
#include "kernels/attention/decode/schedule/schedule.cuh"

namespace opfacade {

// Chunks of the longest request.
template <class C>
__device__ __forceinline__ int most_splits(const DecodeParams& p, int chunk) {
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
    if (!has_begun()) {
      own_slots_ = kNone;
      const BatchSums<C> sums(p_);
      if (fits(sums.total())) return find_chunk(sums, item);
      start_alone();
    } else {
      ++part_;
    }
    return alone() && find_part(item);
  }

  // Never outside the slots, whatever the lengths.
  __device__ __forceinline__ Parts parts_of(const WorkItem& item) const {
    if (item.count == 1) return {0, 1, 0, 0, 0};
    if (alone()) return {part_, item.count, item.run, item.run + 1, 1};
    const int blocks = head_blocks<C>(p_), first_slot = item.run * blocks + item.head;
    const int count = min(item.count, (p_.slots - first_slot + blocks - 1) / blocks);
    return {part_, count, first_slot, first_slot + blocks, blocks};
  }

  __device__ __forceinline__ bool has_begun() const { return own_slots_ != 0; }
  // Whether this block makes all parts of its runs, and nobody else has a part of them.
  __device__ __forceinline__ bool alone() const { return own_slots_ > 0; }

 private:
  static constexpr int kNone = -1;

  __device__ __forceinline__ static int index() { return blockIdx.x / kSideBySide<C>; }

  // Whether each chunk has a slot, and a counter can count those of one run.
  __device__ __forceinline__ bool fits(int total) const {
    const int units = p_.slots / head_blocks<C>(p_);
    if (total > units) return false;
    return units - p_.batch < kMostParts || most_splits<C>(p_, p_.chunk) <= kMostParts;
  }

  __device__ __forceinline__ bool find_chunk(const BatchSums<C>& sums, WorkItem& item) {
    const int blocks = head_blocks<C>(p_), unit = index() / blocks;
    Place place;
    if (!sums.find(p_, unit, place)) return false;
    item.request = place.request;
    item.head = index() % blocks;
    item.run = place.before;
    item.count = place.count;
    part_ = unit - place.before;
    set_keys(item, kv_length<C::kTable>(p_.table, item.request), p_.chunk);
    return true;
  }

  __device__ __forceinline__ void start_alone() {
    const int most = min(most_splits<C>(p_, p_.chunk), min(p_.slots, kMostParts));
    if (index() < p_.slots / most) own_slots_ = most, run_ = index();
  }

  // The next part: of the run at hand, or the first of the next run.
  __device__ __forceinline__ bool find_part(WorkItem& item) {
#pragma unroll 1
    while (run_ < p_.batch * head_blocks<C>(p_)) {
      open_run(item);
      if (part_ < item.count) return true;
      part_ = 0, run_ += p_.slots / own_slots_;
    }
    return false;
  }

  // Chunks grow where the run has more of them than there are slots: no bound on a request allows that.
  __device__ __forceinline__ void open_run(WorkItem& item) {
    const int blocks = head_blocks<C>(p_);
    item.request = run_ / blocks;
    item.head = run_ % blocks;
    item.run = index() * own_slots_;
    const int kv_len = kv_length<C::kTable>(p_.table, item.request), first_key = first_visible<C>(p_, kv_len);
    int chunk = p_.chunk;
#pragma unroll 1
    while (fixed_splits(kv_len, first_key, chunk) > own_slots_) chunk = larger_chunk(chunk);
    item.count = fixed_splits(kv_len, first_key, chunk);
    set_keys(item, kv_len, chunk);
  }

  __device__ __forceinline__ void set_keys(WorkItem& item, int kv_len, int chunk) const {
    item.first_key = first_visible<C>(p_, kv_len);
    set_fixed_keys(kv_len, chunk, part_, item);
  }

  const DecodeParams& p_;
  int own_slots_ = 0;  // where it makes all parts of its runs; 0 before it looked at the lengths
  int run_ = 0, part_ = 0;
};

}  // namespace opfacade
