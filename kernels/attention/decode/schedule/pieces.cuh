// The split of a CTA in kPieces mode. Each warp computes it from the lengths. A split index counts a split once for all head
// blocks.
#pragma once
#include "kernels/attention/decode/schedule/lengths.cuh"

namespace opfacade {

template <class C>
class SplitFinder {
 public:
  __device__ __forceinline__ explicit SplitFinder(const DecodeParams& p) : p_(p) {
    int tiles = 0, max_tiles = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held_[i] = tiles_or_none(lane() + 32 * i);
    for_each([&](int own) { tiles += own, max_tiles = max(max_tiles, own); });
    tiles_ = __reduce_add_sync(0xffffffffu, tiles);
    max_tiles_ = __reduce_max_sync(0xffffffffu, max_tiles);
  }

  // Finds the request of split `split_index`, and the first split that has a slot. Returns false beyond the last split, and if
  // the lengths have changed or exceed the bounds of the plan, so no partial is ever outside the slots.
  __device__ __forceinline__ bool find(int split_index, RequestPosition& place, int& first_split) {
    const int blocks = head_blocks<C>(p_);
    first_split = 0;
    const bool equal = nearly_equal(tiles_, p_.batch, max_tiles_);
    if (!(equal ? find_equal(split_index, blocks, place, first_split) : find_in_order(split_index, blocks, place))) return false;
    const int first = place.before - first_split;
    return place.count == 1 || (first >= 0 && static_cast<int64_t>(first + place.count) * blocks <= p_.slots);
  }

 private:
  static constexpr int kHeld = 4;

  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ int tiles_of(int request) const { return count_of<C>(p_, kv_length<C::kTable>(p_.table, request)); }

  // Returns 0 past the last request. The loads are unconditional, so that the loads of several requests are in flight together.
  __device__ __forceinline__ int tiles_or_none(int request) const {
    const int tiles = tiles_of(min(request, p_.batch - 1));
    return request < p_.batch ? tiles : 0;
  }

  // Calls f with the tiles of each of this lane's requests.
  template <class F>
  __device__ __forceinline__ void for_each(F&& f) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (held_[i] > 0) f(held_[i]);
#pragma unroll 1
    for (int first = 32 * kHeld; first < p_.batch; first += 32 * kHeld) {
      int tiles[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) tiles[i] = tiles_or_none(first + lane() + 32 * i);
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
        if (tiles[i] > 0) f(tiles[i]);
    }
  }

  __device__ __forceinline__ bool find_equal(int split_index, int blocks, RequestPosition& place, int& first_split) const {
    const EqualPartition cut = equal_partition(p_.batch, max_tiles_, max(1, p_.resident / blocks));
    place = cut.find(split_index);
    first_split = cut.first_split();
    return place.request < p_.batch;
  }

  __device__ __forceinline__ bool all_concurrent(int blocks) const {
    if (p_.batch * blocks > p_.resident) return false;
    int count = 0;
    for_each([&](int own) { count += split_count(own, longest_); });
    return static_cast<int>(__reduce_add_sync(0xffffffffu, count)) * blocks <= p_.resident;
  }

  // Splits are ordered by class, then by lane, then by the lane's requests.
  __device__ __forceinline__ bool find_in_order(int split_index, int blocks, RequestPosition& place) {
    longest_ = longest_concurrent_split(static_cast<int64_t>(tiles_) * blocks, p_.resident);
    if (!all_concurrent(blocks)) longest_ = longest_queued_split(longest_);
    int before, own;  // splits in earlier classes, and this lane's splits in the class of the current split
    const int wanted = class_with(split_index, before, own);
    if (wanted < 0) return false;
    const int through = before + inclusive_scan(own);
    // exists, because class_with counted the split
    const int owner = __ffs(__ballot_sync(0xffffffffu, through > split_index)) - 1;
    place.request = owner, place.before = __shfl_sync(0xffffffffu, through - own, owner);
    return find_of_lane(split_index, wanted, place);
  }

  // The class of the split, or -1 beyond the last split.
  __device__ __forceinline__ int class_with(int split_index, int& before, int& own) const {
    int counts[kSplitClasses] = {}, wanted = -1;
    for_each([&](int tiles) {
      const int count = split_count(tiles, longest_), of = split_class(tiles, count, longest_);
#pragma unroll
      for (int i = 0; i < kSplitClasses; ++i) counts[i] += of == i ? count : 0;
    });
    before = own = 0;
#pragma unroll
    for (int i = 0; i < kSplitClasses; ++i) {
      const int total = __reduce_add_sync(0xffffffffu, counts[i]);
      if (wanted >= 0) continue;
      if (split_index < before + total) {
        wanted = i, own = counts[i];
      } else {
        before += total;
      }
    }
    return wanted;
  }

  // place.request is the first request of the lane that has the split. Each lane tests one request of this lane.
  __device__ __forceinline__ bool find_of_lane(int split_index, int wanted, RequestPosition& place) const {
    for (; place.request < p_.batch; place.request += 32 * 32) {
      const int request = place.request + 32 * lane();
      int own = 0;
      if (request < p_.batch) {
        const int tiles = tiles_of(request), count = split_count(tiles, longest_);
        own = split_class(tiles, count, longest_) == wanted ? count : 0;
      }
      const int end = place.before + inclusive_scan(own);
      const unsigned beyond = __ballot_sync(0xffffffffu, end > split_index);
      if (beyond != 0) {
        const int found = __ffs(beyond) - 1;
        place = {place.request + 32 * found, __shfl_sync(0xffffffffu, end - own, found), __shfl_sync(0xffffffffu, own, found)};
        return true;
      }
      place.before = __shfl_sync(0xffffffffu, end, 31);
    }
    return false;
  }

  const DecodeParams& p_;
  int held_[kHeld];  // the tiles of this lane's first requests
  int tiles_, max_tiles_, longest_;
};

}  // namespace opfacade
