// Which tile a block works on next. Blocks stay; the warp that loads finds their work ahead of those that compute.
#pragma once
#include "kernels/attention/prefill_schedule.cuh"
#include "kernels/attention/prefill_finish.cuh"
#include "kernels/attention/prefill_variant_of.cuh"
#include "kernels/attention/prefill_wgmma_params.h"
#include "kernels/common/chunk.cuh"
#include "kernels/common/softmax.cuh"
#include "kernels/common/warpgroup.cuh"

namespace opfacade {

// Tiles in which some row of the tile does not see some key, or that reach outside the range: all where more hides keys.
struct MaskedTiles {
  int above;  // those that start later
  int below;  // those that start earlier

  __device__ __forceinline__ bool operator()(int start) const { return start > above || start < below; }
  // How many of `left` tiles are left when one is masked again. The first of them, at `start`, is not.
  __device__ __forceinline__ int plain_until(int start, int left, int tile) const {
    const int64_t plain = (static_cast<int64_t>(start) - below) / tile + 1;
    return plain < left ? left - static_cast<int>(plain) : 0;
  }
};

struct Work {
  RowTile tile;  // rows 0: there is no more
  KvRange range;
  int head;      // of K and V
  int split;
  int tiles;     // of keys
  int last;      // where the last of them starts, which is the first to be worked on
  MaskedTiles masked;
};

// Tiles of keys lie at multiples of kTileKv whatever the range, so that pages lie in them in whole boxes.
template <class C>
__device__ __forceinline__ int first_start(const KvRange& range) {
  return range.begin / C::kTileKv * C::kTileKv;
}
template <class C>
__device__ __forceinline__ int tile_count(const KvRange& range) {
  return range.end <= range.begin ? 0 : (range.end - first_start<C>(range) + C::kTileKv - 1) / C::kTileKv;
}

// The part of the visible range that a split takes. With a fixed chunk it is cut by its own number alone.
template <class C>
__device__ __forceinline__ KvRange part_of(const PrefillParams& p, KvRange range, int split) {
  if constexpr (C::kSplit == SplitMode::kFixed) {
    const int start = split * p.chunk;
    const bool rest = split == p.num_splits - 1;  // no length has keys that nobody reads
    range.end = !rest && range.end - start > p.chunk ? start + p.chunk : range.end;
    range.begin = max(range.begin, start);
  }
  if constexpr (C::kSplit == SplitMode::kAuto) {
    const int share = (tile_count<C>(range) + p.num_splits - 1) / p.num_splits * C::kTileKv;
    const int start = first_start<C>(range) + split * share;
    range.end = min(range.end, start + share);
    range.begin = max(range.begin, start);
  }
  return range;
}

template <class C>
__device__ __forceinline__ MaskedTiles masked_tiles(const PrefillParams& p, const Work& work) {
  if constexpr (kHidesMore<C>) return {-2 * C::kTileKv, 0};
  return {row_range<C>(p, work.tile, work.range, 0).end - C::kTileKv,
          row_range<C>(p, work.tile, work.range, work.tile.rows - 1).begin};
}

// What those that load and compute would each find anew.
template <class C>
__device__ __forceinline__ void set_tiles(const PrefillParams& p, Work& work) {
  work.tiles = tile_count<C>(work.range);
  work.last = first_start<C>(work.range) + (work.tiles - 1) * C::kTileKv;
  work.masked = masked_tiles<C>(p, work);
}

template <class C>
__device__ __forceinline__ int64_t row_in_o(const PrefillParams& p, const Work& work, int row, int64_t row_stride,
                                            int64_t head_stride) {
  const int packed = work.tile.first + row;
  return (work.tile.q_start + packed / C::kGroup) * row_stride + (work.head * C::kGroup + packed % C::kGroup) * head_stride;
}

// Writes a tile of rows that see no key, by one warp: nobody else hears of it.
template <class C>
__device__ __forceinline__ void write_empty(const PrefillParams& p, const Work& work) {
#pragma unroll 1
  for (int row = threadIdx.x % 32; row < work.tile.rows; row += 32) {
    const int64_t at = row_in_o<C>(p, work, row, p.heads, 1);
    if constexpr (C::kSplit != SplitMode::kOff) {
      p.partial_lse[static_cast<int64_t>(work.split) * p.total_rows * p.heads + at] = minus_infinity();
    } else {
      const int head = work.head * C::kGroup + (work.tile.first + row) % C::kGroup;
      if constexpr (C::kReturnLse) p.lse[at] = finished<C>(p, head, minus_infinity()).lse;
      char* dst = static_cast<char*>(p.o) + row_in_o<C>(p, work, row, p.o_row_stride, p.o_head_stride);
#pragma unroll 1
      for (int chunk = 0; chunk < C::kHeadDimVo / 8; ++chunk)
        store_halves_8(dst + chunk * 16, make_uint4(0, 0, 0, 0), p.o_aligned);
    }
  }
}

// Hands this block its work, by one whole warp. Tiles of rows are ranked by their keys, most first, and dealt to the blocks
// to and fro, so that all end at about the same time; no plan, no atomics. The heads of one tile follow each other, and so do
// its splits: they share keys in L2. Heads take turns, so many at a time that their keys and values lie in the L2. Turns go to and
// fro as well, the last with the most first: a jump from few keys to many would leave some blocks with more than others. With more
// requests than fit in shared memory tiles keep their order, last first.
struct Lengths {
  int q;
  int kv;
};
constexpr int kMaxRanked = 256;
constexpr int kManyHeads = 16;         // of K and V in a turn, where lengths are not known; of 132 blocks eight are then at one head
constexpr float kL2 = 32 * 1048576.f;  // bytes of K and V in a turn
constexpr int kFewRounds = 3;          // of all blocks in a turn; fewer would not be dealt evenly

// How far a block has come.
struct Progress {
  int round = 0;
  int heads = 0;    // of a turn
  int items = 0;    // of a turn
  int turn = 0;     // of the heads
  int dearest = 0;  // in tiles of keys
  int cost = 0;     // no work to come in this turn takes more
  int above = 0;    // tiles that take more
};

template <class C>
struct Scheduler : Progress {
  static constexpr int kTokens = C::kTileRows / C::kGroup;  // of a tile

  const WgmmaPrefillParams& p;
  Lengths* lengths;  // in shared memory
  __device__ __forceinline__ Scheduler(const WgmmaPrefillParams& params, Lengths* shared) : p(params), lengths(shared) {}

  // Once, before the first work.
  __device__ __forceinline__ void survey() {
    items = p.slots, heads = p.kv_heads;
    float bytes = kL2 / kManyHeads;  // of a head
    if (ranked()) {
      int longest = 0, tiles = 0, tokens = 0;
#pragma unroll 1
      for (int r = threadIdx.x % 32; r < p.base.batch; r += 32) {
        const Lengths n{q_rows(p.base, r).count(), kv_length<C::kTable>(p.base.table, r)};
        lengths[r] = n;
        longest = max(longest, n.kv);
        tiles += tiles_of(n), tokens += n.kv;
      }
      __syncwarp();
      cost = dearest = (__reduce_max_sync(0xffffffffu, longest) + C::kTileKv - 1) / C::kTileKv;
      items = __reduce_add_sync(0xffffffffu, tiles);
      bytes = static_cast<float>(__reduce_add_sync(0xffffffffu, tokens)) * ((C::kHeadDim + C::kHeadDimVo) * C::kKvBytes);
    }
    items *= heads * splits();
#pragma unroll 1
    while (heads * bytes > kL2 && heads % 2 == 0 && items / 2 >= static_cast<int>(kFewRounds * gridDim.x)) heads /= 2, items /= 2;
  }

  __device__ __forceinline__ bool ranked() const { return p.base.batch <= kMaxRanked; }
  __device__ __forceinline__ int splits() const { return C::kSplit == SplitMode::kOff ? 1 : p.base.num_splits; }

  __device__ __forceinline__ static int tiles_of(const Lengths& n) { return (n.q + kTokens - 1) / kTokens; }
  // How many tiles of a request, counted from its first, take at most `limit` tiles of keys.
  __device__ __forceinline__ static int cheap_of(const Lengths& n, int limit) {
    if (limit < 0) return 0;  // cost - 1 can be
    if (n.kv <= limit * C::kTileKv) return tiles_of(n);
    return C::kCausal ? max(limit * C::kTileKv - n.kv + n.q, 0) / kTokens : 0;
  }
  // Over all requests, the tiles that take more than `limit`.
  __device__ __forceinline__ int dearer(int limit) const {
    int count = 0;
#pragma unroll 1
    for (int r = threadIdx.x % 32; r < p.base.batch; r += 32) count += tiles_of(lengths[r]) - cheap_of(lengths[r], limit);
    return __reduce_add_sync(0xffffffffu, count);
  }

  // The request and number of the tile with a rank.
  __device__ __forceinline__ void find_ranked(int rank, int& request, int& tile) {
    int low = 0;
#pragma unroll 1
    while (low < cost) {  // the least cost that no more than `rank` tiles exceed
      const int middle = (low + cost) / 2, count = dearer(middle);
      if (count <= rank) cost = middle, above = count; else low = middle + 1;
    }
    rank -= above;
    request = tile = 0;
#pragma unroll 1
    for (int first = 0; first < p.base.batch; first += 32) {
      const int r = first + threadIdx.x % 32;
      const Lengths n = r < p.base.batch ? lengths[r] : Lengths{0, 0};
      const int cheaper = cheap_of(n, cost - 1), same = cheap_of(n, cost) - cheaper;
      int until = same;  // sum over this and earlier lanes
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, until, step);
        if (threadIdx.x % 32 >= step) until += other;
      }
      const uint32_t past = __ballot_sync(0xffffffffu, until > rank);
      if (past != 0) {
        const int lane = __ffs(past) - 1;
        request = first + lane;
        tile = __shfl_sync(0xffffffffu, cheaper + rank - until + same, lane);
        return;
      }
      rank -= __shfl_sync(0xffffffffu, until, 31);
    }
  }
  __device__ __forceinline__ void find_in_order(int place, int& request, int& tile) const {
    const int slot = p.slots - 1 - place;
    request = find_request<C>(p.base, slot);
    tile = slot - slot_start<C>(p.base, request);
  }

  // False if the item is no work: a slot without rows.
  __device__ __forceinline__ bool find(int item, Work& work) {
    const int now = item / items;
    const bool rises = ranked() && (p.kv_heads / heads - now) % 2 == 0;
    if (rises || now != turn) turn = now, cost = dearest, above = 0;
    item %= items;
    if (rises) item = items - 1 - item;
    work.head = turn * heads + item % heads;
    item /= heads;
    work.split = item % splits();
    int number;
    RowTile& tile = work.tile;
    if (ranked()) {
      find_ranked(item / splits(), tile.request, number);
    } else {
      find_in_order(item / splits(), tile.request, number);
    }
    if (!set_row_tile<C>(p.base, number, tile)) return false;
    work.range = part_of<C>(p.base, visible_range<C>(p.base, tile), work.split);
    set_tiles<C>(p.base, work);
    return true;
  }

  // In shared memory from work to work: registers are scarce where threads copy.
  __device__ __forceinline__ void resume(const Progress& kept) { static_cast<Progress&>(*this) = kept; }
  __device__ __forceinline__ void keep(Progress& kept) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) kept = *this;
    __syncwarp();
  }

  // The next work of this block, in every lane; rows 0 when there is none.
  __device__ __forceinline__ Work next() {
    Work work{};
    for (;; ++round) {
      const int blocks = gridDim.x, block = blockIdx.x;
      const int all = items * (p.kv_heads / heads);
      if (round * blocks >= all) break;
      const int item = round * blocks + (ranked() && (round & 1) ? blocks - 1 - block : block);
      if (item >= all || !find(item, work)) continue;
      if (work.tiles > 0) return ++round, work;
      write_empty<C>(p.base, work);
    }
    work.tile.rows = 0;
    return work;
  }
};

}  // namespace opfacade
