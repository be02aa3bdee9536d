// The work items of a CTA, which each warp computes from the lengths on the device: a lane adds a few requests, one scan finds
// the lane, and a second scan finds the request. No barrier is needed.
#pragma once
#include "kernels/attention/decode/schedule/pieces.cuh"

namespace opfacade {

template <class C>
struct BatchSums {
  int first_request, end_request;  // this lane has the requests [first_request, end_request)
  int count;         // sum of the counts of this lane's requests
  int through;       // inclusive prefix sum over lanes
  int max_count;          // largest count of one request in the batch

  __device__ __forceinline__ explicit BatchSums(const DecodeParams& p) {
    const int length = (p.batch + 31) / 32;
    first_request = min(static_cast<int>(threadIdx.x % 32) * length, p.batch);
    end_request = min(first_request + length, p.batch);
    count = max_count = 0;
#pragma unroll 4
    for (int request = first_request; request < end_request; ++request) {
      const int own = count_of<C>(p, kv_length<C::kTable>(p.table, request));
      count += own;
      max_count = max(max_count, own);
    }
    through = inclusive_scan(count);
    max_count = __reduce_max_sync(0xffffffffu, max_count);
  }

  __device__ __forceinline__ int total() const { return __shfl_sync(0xffffffffu, through, 31); }

  // Finds the request that contains `position`. Returns false beyond the last position, and if the lengths have changed since
  // the sums were computed.
  __device__ __forceinline__ bool find(const DecodeParams& p, int position, RequestPosition& place) const {
    const unsigned after = __ballot_sync(0xffffffffu, through > position);
    if (after == 0) return false;
    const int owner = __ffs(after) - 1, lane = threadIdx.x % 32;
    int base = __shfl_sync(0xffffffffu, through - count, owner);
    if (p.batch <= 32) {  // one request per lane
      place = {owner, base, __shfl_sync(0xffffffffu, count, owner)};
      return true;
    }
    int first = __shfl_sync(0xffffffffu, first_request, owner);
    const int last = __shfl_sync(0xffffffffu, end_request, owner);
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

// The number of adjacent CTAs that share an item: the CTAs of its clusters, or the head blocks of a latent decode.
template <class C>
constexpr int kCtasPerItem = C::kClustersPerUnit * C::kClusterSize;

// Each CTA has one item: a whole work unit, a split of a unit, or the part of a CTA in a cluster.
template <class C, SplitMode kSplit>
class Schedule {
 public:
  __device__ __forceinline__ explicit Schedule(const DecodeParams& p) : p_(p) {}

  __device__ __forceinline__ bool next(WorkItem& item) {
    if (done_) return false;
    done_ = true;
    const int blocks = head_blocks<C>(p_), index = blockIdx.x / kCtasPerItem<C>, split_index = index / blocks;
    RequestPosition place{split_index, split_index, 1};
    int first_split = 0;
    if constexpr (kSplit == SplitMode::kPieces)
      if (!SplitFinder<C>(p_).find(split_index, place, first_split)) return false;
    item.request = place.request;
    item.head = index % blocks;
    item.unit_start = place.before - first_split;
    item.count = place.count;
    partial_ = split_index - place.before;
    set_keys(item);
    return true;
  }

  // No partial is outside the slots, for any lengths.
  __device__ __forceinline__ Partials partials_of(const WorkItem& item) const {
    if (item.count == 1) return {0, 1, 0, 0, 0};
    const int blocks = head_blocks<C>(p_), first_slot = item.unit_start * blocks + item.head;
    const int count = min(item.count, (p_.slots - first_slot + blocks - 1) / blocks);
    return {partial_, count, first_slot, first_slot + blocks, blocks};
  }

 private:
  __device__ __forceinline__ void set_keys(WorkItem& item) const {
    const int kv_len = kv_length<C::kTable>(p_.table, item.request);
    item.first_key = first_visible<C>(p_, kv_len);
    const int first = item.first_key / kScheduleTile;
    if constexpr (kSplit == SplitMode::kPieces) {
      const int tiles = count_of<C>(p_, kv_len);
      item.begin = (first + split_start(tiles, item.count, partial_)) * kScheduleTile;
      item.end = min(kv_len, (first + split_start(tiles, item.count, partial_ + 1)) * kScheduleTile);
    } else if constexpr (kSplit == SplitMode::kCluster) {
      const int share = tiles_per_cta(count_of<C>(p_, kv_len), kCtasPerItem<C>) * kScheduleTile;
      item.begin = first * kScheduleTile + static_cast<int>(blockIdx.x % kCtasPerItem<C>) * share;
      item.end = min(kv_len, item.begin + share);
    } else {
      item.begin = first * kScheduleTile;
      item.end = kv_len;
    }
  }

  const DecodeParams& p_;
  bool done_ = false;
  int partial_ = 0;
};

// Even shares of all tiles (stream-K), or whole units that CTAs take round-robin.
template <class C>
class Schedule<C, SplitMode::kAuto> {
 public:
  __device__ __forceinline__ explicit Schedule(const DecodeParams& p) : p_(p) {
    const BatchSums<C> sums(p);
    const int units = p.batch * head_blocks<C>(p);
    const int64_t tiles = static_cast<int64_t>(sums.total()) * head_blocks<C>(p);
    // Positions have 32 bits, so a larger batch is not split.
    share_ = tiles <= kMaxPosition ? even_share(tiles, units, sums.max_count, p.resident) : 0;
    if (share_ != 0) {
      start_even(sums, static_cast<int>(tiles));
    } else {
      position_ = block();
      stop_ = units;
    }
  }

  __device__ __forceinline__ bool next(WorkItem& item) {
    if (position_ >= stop_) return false;
    if (share_ != 0) {
      next_even(item);
    } else {
      next_unit(item);
    }
    return true;
  }

  __device__ __forceinline__ Partials partials_of(const WorkItem& item) const {
    if (share_ != 0) return share_partials(item.unit_start, item.count, share_, block());
    return {0, 1, 0, 0, 0};
  }

 private:
  static constexpr int kMaxPosition = 0x7fff0000;

  __device__ __forceinline__ static unsigned block() { return blockIdx.x / kCtasPerItem<C>; }

  __device__ __forceinline__ void start_even(const BatchSums<C>& sums, int tiles) {
    position_ = static_cast<int>(min(static_cast<int64_t>(block()) * share_, static_cast<int64_t>(tiles)));
    stop_ = min(position_ + share_, tiles);
    if (position_ < stop_ && !sums.find(p_, position_ / head_blocks<C>(p_), place_)) stop_ = position_;
    if (position_ >= stop_) return;
    // Step back by one request: the first advance() loads place_.
    next_len_ = kv_length<C::kTable>(p_.table, place_.request);
    --place_.request, place_.count = 0;
  }

  // Units are numbered like tiles: by request, then by head block.
  __device__ __forceinline__ void next_unit(WorkItem& item) {
    const int blocks = head_blocks<C>(p_);
    item.request = position_ / blocks;
    item.head = position_ % blocks;
    const int kv_len = kv_length<C::kTable>(p_.table, item.request);
    set_tiles(item, kv_len, 0, count_of<C>(p_, kv_len));
    position_ += gridDim.x / kCtasPerItem<C>;
  }

  __device__ __forceinline__ void next_even(WorkItem& item) {
    const int blocks = head_blocks<C>(p_);
    if (position_ >= (place_.before + place_.count) * blocks) advance();
    const unsigned within = position_ - place_.before * blocks, count = place_.count;
    const int tile = within % count, length = min(place_.count - tile, stop_ - position_);
    item.request = place_.request;
    item.head = min(static_cast<int>(within / count), blocks - 1);
    item.unit_start = position_ - tile;
    item.count = place_.count;
    set_tiles(item, kv_len_, tile, length);
    position_ += length;
  }

  __device__ __forceinline__ void set_tiles(WorkItem& item, int kv_len, int tile, int length) const {
    item.first_key = first_visible<C>(p_, kv_len);
    item.begin = (item.first_key / kScheduleTile + tile) * kScheduleTile;
    item.end = min(kv_len, item.begin + length * kScheduleTile);
  }

  __device__ __forceinline__ void advance() {
    place_.before += place_.count;
    place_.request = min(place_.request + 1, p_.batch - 1);
    kv_len_ = next_len_;
    place_.count = count_of<C>(p_, kv_len_);
    look_ahead();
  }
  // Loads the length of the next request early.
  __device__ __forceinline__ void look_ahead() {
    next_len_ = place_.request + 1 < p_.batch ? kv_length<C::kTable>(p_.table, place_.request + 1) : 0;
  }

  const DecodeParams& p_;
  int share_;
  int position_, stop_;  // with even shares, in tiles; otherwise, in work units
  RequestPosition place_;          // used only with even shares, as are the lengths
  int kv_len_, next_len_;
};

}  // namespace opfacade
