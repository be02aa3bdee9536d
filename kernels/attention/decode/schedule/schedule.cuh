// Which items a decode block works on, found from the lengths on the device. Every warp finds them on its own (a lane adds
// up a few requests, one scan finds the lane, another the request), which costs no barrier.
#pragma once
#include "kernels/attention/decode/schedule/pieces.cuh"

namespace opfacade {

template <class C>
struct BatchSums {
  int run, run_end;  // requests of this lane
  int count;         // what they count for
  int through;       // and with all before
  int most;          // of one request in the whole batch

  __device__ __forceinline__ explicit BatchSums(const DecodeParams& p) {
    const int length = (p.batch + 31) / 32;
    run = min(static_cast<int>(threadIdx.x % 32) * length, p.batch);
    run_end = min(run + length, p.batch);
    count = most = 0;
#pragma unroll 4
    for (int request = run; request < run_end; ++request) {
      const int own = count_of<C>(p, kv_length<C::kTable>(p.table, request));
      count += own;
      most = max(most, own);
    }
    through = inclusive_scan(count);
    most = __reduce_max_sync(0xffffffffu, most);
  }

  __device__ __forceinline__ int total() const { return __shfl_sync(0xffffffffu, through, 31); }

  // The request that holds `position`; false beyond the last, and where lengths are others than a moment ago.
  __device__ __forceinline__ bool find(const DecodeParams& p, int position, Place& place) const {
    const unsigned after = __ballot_sync(0xffffffffu, through > position);
    if (after == 0) return false;
    const int owner = __ffs(after) - 1, lane = threadIdx.x % 32;
    int base = __shfl_sync(0xffffffffu, through - count, owner);
    if (p.batch <= 32) {  // a lane has one request: nothing to look for
      place = {owner, base, __shfl_sync(0xffffffffu, count, owner)};
      return true;
    }
    int first = __shfl_sync(0xffffffffu, run, owner);
    const int last = __shfl_sync(0xffffffffu, run_end, owner);
    for (; first < last; first += 32) {
      const int own = first + lane < last ? count_of<C>(p, kv_length<C::kTable>(p.table, first + lane)) : 0;
      const int end = base + inclusive_scan(own);
      const unsigned beyond = __ballot_sync(0xffffffffu, end > position);
      if (beyond != 0) {
        const int found = __ffs(beyond) - 1;
        place.request = first + found;
        place.count = __shfl_sync(0xffffffffu, own, found);
        place.before = __shfl_sync(0xffffffffu, end, found) - place.count;
        return true;
      }
      base = __shfl_sync(0xffffffffu, end, 31);
    }
    return false;
  }
};

// Blocks that share an item and lie side by side: its teams, or, of latents, its blocks of heads.
template <class C>
constexpr int kSideBySide = C::kTeams * C::kCluster;

// One item a block: the whole of a request's heads, a piece of it, or a team member's share. (Fixed chunks: decode/schedule/chunks.cuh.)
template <class C, SplitMode kSplit>
class Schedule {
 public:
  __device__ __forceinline__ explicit Schedule(const DecodeParams& p) : p_(p) {}

  __device__ __forceinline__ bool next(WorkItem& item) {
    if (taken_) return false;
    taken_ = true;
    const int blocks = head_blocks<C>(p_), index = blockIdx.x / kSideBySide<C>, unit = index / blocks;
    Place place{unit, unit, 1};
    int slots_from = 0;
    if constexpr (kSplit == SplitMode::kPieces)
      if (!PieceSurvey<C>(p_).find(unit, place, slots_from)) return false;
    item.request = place.request;
    item.head = index % blocks;
    item.run = place.before - slots_from;
    item.count = place.count;
    part_ = unit - place.before;
    set_keys(item);
    return true;
  }

  // Never outside the slots, whatever the lengths.
  __device__ __forceinline__ Parts parts_of(const WorkItem& item) const {
    if (item.count == 1) return {0, 1, 0, 0, 0};
    const int blocks = head_blocks<C>(p_), first_slot = item.run * blocks + item.head;
    const int count = min(item.count, (p_.slots - first_slot + blocks - 1) / blocks);
    return {part_, count, first_slot, first_slot + blocks, blocks};
  }

 private:
  __device__ __forceinline__ void set_keys(WorkItem& item) const {
    const int kv_len = kv_length<C::kTable>(p_.table, item.request);
    item.first_key = first_visible<C>(p_, kv_len);
    const int first = item.first_key / kShareTokens;
    if constexpr (kSplit == SplitMode::kPieces) {
      const int tiles = count_of<C>(p_, kv_len);
      item.begin = (first + piece_start(tiles, item.count, part_)) * kShareTokens;
      item.end = min(kv_len, (first + piece_start(tiles, item.count, part_ + 1)) * kShareTokens);
    } else if constexpr (kSplit == SplitMode::kCluster) {
      const int share = team_share(count_of<C>(p_, kv_len), kSideBySide<C>) * kShareTokens;
      item.begin = first * kShareTokens + static_cast<int>(blockIdx.x % kSideBySide<C>) * share;
      item.end = min(kv_len, item.begin + share);
    } else {
      item.begin = first * kShareTokens;
      item.end = kv_len;
    }
  }

  const DecodeParams& p_;
  bool taken_ = false;
  int part_ = 0;
};

// Even shares of all tiles, or whole runs in turn.
template <class C>
class Schedule<C, SplitMode::kAuto> {
 public:
  __device__ __forceinline__ explicit Schedule(const DecodeParams& p) : p_(p) {
    const BatchSums<C> sums(p);
    const int runs = p.batch * head_blocks<C>(p);
    const int64_t tiles = static_cast<int64_t>(sums.total()) * head_blocks<C>(p);
    // A position is an int: beyond that many tiles, runs are not split.
    share_ = tiles <= kMost ? even_share(tiles, runs, sums.most, p.resident) : 0;
    if (share_ != 0) {
      start_even(sums, static_cast<int>(tiles));
    } else {
      position_ = block();
      stop_ = runs;
    }
  }

  __device__ __forceinline__ bool next(WorkItem& item) {
    if (position_ >= stop_) return false;
    if (share_ != 0) {
      next_even(item);
    } else {
      next_run(item);
    }
    return true;
  }

  __device__ __forceinline__ Parts parts_of(const WorkItem& item) const {
    if (share_ != 0) return even_parts(item.run, item.count, share_, block());
    return {0, 1, 0, 0, 0};
  }

 private:
  static constexpr int kMost = 0x7fff0000;

  __device__ __forceinline__ static unsigned block() { return blockIdx.x / kSideBySide<C>; }

  __device__ __forceinline__ void start_even(const BatchSums<C>& sums, int tiles) {
    position_ = static_cast<int>(min(static_cast<int64_t>(block()) * share_, static_cast<int64_t>(tiles)));
    stop_ = min(position_ + share_, tiles);
    if (position_ < stop_ && !sums.find(p_, position_ / head_blocks<C>(p_), place_)) stop_ = position_;
    if (position_ >= stop_) return;
    // As if it had just been passed: the first item takes it up as any other.
    next_len_ = kv_length<C::kTable>(p_.table, place_.request);
    --place_.request, place_.count = 0;
  }

  // Runs are numbered like tiles: request by request, head block by head block.
  __device__ __forceinline__ void next_run(WorkItem& item) {
    const int blocks = head_blocks<C>(p_);
    item.request = position_ / blocks;
    item.head = position_ % blocks;
    const int kv_len = kv_length<C::kTable>(p_.table, item.request);
    set_tiles(item, kv_len, 0, count_of<C>(p_, kv_len));
    position_ += gridDim.x / kSideBySide<C>;
  }

  __device__ __forceinline__ void next_even(WorkItem& item) {
    const int blocks = head_blocks<C>(p_);
    if (position_ >= (place_.before + place_.count) * blocks) advance();
    const unsigned within = position_ - place_.before * blocks, count = place_.count;
    const int tile = within % count, length = min(place_.count - tile, stop_ - position_);
    item.request = place_.request;
    item.head = min(static_cast<int>(within / count), blocks - 1);
    item.run = position_ - tile;
    item.count = place_.count;
    set_tiles(item, kv_len_, tile, length);
    position_ += length;
  }

  __device__ __forceinline__ void set_tiles(WorkItem& item, int kv_len, int tile, int length) const {
    item.first_key = first_visible<C>(p_, kv_len);
    item.begin = (item.first_key / kShareTokens + tile) * kShareTokens;
    item.end = min(kv_len, item.begin + length * kShareTokens);
  }

  __device__ __forceinline__ void advance() {
    place_.before += place_.count;
    place_.request = min(place_.request + 1, p_.batch - 1);
    kv_len_ = next_len_;
    place_.count = count_of<C>(p_, kv_len_);
    look_ahead();
  }
  // The next request's length, before anyone waits for it.
  __device__ __forceinline__ void look_ahead() {
    next_len_ = place_.request + 1 < p_.batch ? kv_length<C::kTable>(p_.table, place_.request + 1) : 0;
  }

  const DecodeParams& p_;
  int share_;
  int position_, stop_;  // even: tiles; otherwise runs
  Place place_;          // even only, as the lengths
  int kv_len_, next_len_;
};

}  // namespace opfacade
