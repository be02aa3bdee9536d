// Which piece a decode block has, found from the lengths by every warp on its own. A unit is a piece for each block of heads.
#pragma once
#include "kernels/attention/decode/schedule/lengths.cuh"

namespace opfacade {

template <class C>
class PieceSurvey {
 public:
  __device__ __forceinline__ explicit PieceSurvey(const DecodeParams& p) : p_(p) {
    int tiles = 0, most = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held_[i] = lane() + 32 * i < p.batch ? tiles_of(lane() + 32 * i) : 0;
    for_each([&](int own) { tiles += own, most = max(most, own); });
    tiles_ = __reduce_add_sync(0xffffffffu, tiles);
    most_ = __reduce_max_sync(0xffffffffu, most);
  }

  // The request that holds `unit`, and the unit that has the first slot; false beyond the last, and where lengths are others
  // than a moment ago or so long that no plan would allow them: no part lies outside the slots, whatever they are.
  __device__ __forceinline__ bool find(int unit, Place& place, int& slots_from) {
    const int blocks = head_blocks<C>(p_);
    slots_from = 0;
    const bool equal = nearly_equal(tiles_, p_.batch, most_);
    if (!(equal ? find_equal(unit, blocks, place, slots_from) : find_in_order(unit, blocks, place))) return false;
    const int first = place.before - slots_from;
    return place.count == 1 || (first >= 0 && static_cast<int64_t>(first + place.count) * blocks <= p_.slots);
  }

 private:
  static constexpr int kHeld = 4;

  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ int tiles_of(int request) const { return count_of<C>(p_, kv_length<C::kTable>(p_.table, request)); }

  // Tiles of each request of this lane.
  template <class F>
  __device__ __forceinline__ void for_each(F&& f) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (held_[i] > 0) f(held_[i]);
#pragma unroll 4
    for (int request = 32 * kHeld + lane(); request < p_.batch; request += 32) f(tiles_of(request));
  }

  __device__ __forceinline__ bool find_equal(int unit, int blocks, Place& place, int& slots_from) const {
    const EqualCut cut = equal_cut(p_.batch, most_, max(1, p_.resident / blocks));
    place = cut.find(unit);
    slots_from = cut.first_unit();
    return place.request < p_.batch;
  }

  __device__ __forceinline__ bool run_at_once(int blocks) const {
    if (p_.batch * blocks > p_.resident) return false;
    int count = 0;
    for_each([&](int own) { count += piece_count(own, longest_); });
    return static_cast<int>(__reduce_add_sync(0xffffffffu, count)) * blocks <= p_.resident;
  }

  // In the order of classes; in a class of lanes, and of a lane's requests.
  __device__ __forceinline__ bool find_in_order(int unit, int blocks, Place& place) {
    longest_ = piece_at_once(static_cast<int64_t>(tiles_) * blocks, p_.resident);
    if (!run_at_once(blocks)) longest_ = piece_in_turn(longest_);
    int before, own;  // pieces of the classes before, and of this lane in the one that has the unit
    const int wanted = class_with(unit, before, own);
    if (wanted < 0) return false;
    const int through = before + inclusive_scan(own);
    const int owner = __ffs(__ballot_sync(0xffffffffu, through > unit)) - 1;  // counted above, so there is one
    place.request = owner, place.before = __shfl_sync(0xffffffffu, through - own, owner);
    return find_of_lane(unit, wanted, place);
  }

  // -1 beyond the last.
  __device__ __forceinline__ int class_with(int unit, int& before, int& own) const {
    int counts[kPieceClasses] = {}, wanted = -1;
    for_each([&](int tiles) {
      const int count = piece_count(tiles, longest_), of = piece_class(tiles, count, longest_);
#pragma unroll
      for (int i = 0; i < kPieceClasses; ++i) counts[i] += of == i ? count : 0;
    });
    before = own = 0;
#pragma unroll
    for (int i = 0; i < kPieceClasses; ++i) {
      const int total = __reduce_add_sync(0xffffffffu, counts[i]);
      if (wanted >= 0) continue;
      if (unit < before + total) {
        wanted = i, own = counts[i];
      } else {
        before += total;
      }
    }
    return wanted;
  }

  // place: of the first request of the lane that has the unit. A lane looks at one request of it.
  __device__ __forceinline__ bool find_of_lane(int unit, int wanted, Place& place) const {
    for (; place.request < p_.batch; place.request += 32 * 32) {
      const int request = place.request + 32 * lane();
      int own = 0;
      if (request < p_.batch) {
        const int tiles = tiles_of(request), count = piece_count(tiles, longest_);
        own = piece_class(tiles, count, longest_) == wanted ? count : 0;
      }
      const int end = place.before + inclusive_scan(own);
      const unsigned beyond = __ballot_sync(0xffffffffu, end > unit);
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
  int held_[kHeld];  // tiles of this lane's first requests
  int tiles_, most_, longest_;
};

}  // namespace opfacade
