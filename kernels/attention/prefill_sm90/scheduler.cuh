// Which tile a block works on next. Blocks stay; the warp that loads finds their work ahead of those that compute.
#pragma once
#include "kernels/attention/prefill_wgmma_work.cuh"
#include "kernels/attention/lazy_softmax.cuh"
#include "kernels/ptx/warpgroup.cuh"

namespace opfacade {

// Hands this block its work, by one whole warp. Tiles of rows are ranked by their keys, most first, and dealt to the blocks
// to and fro, so that all end at about the same time; no plan, no atomics. The heads of one tile follow each other, and so do
// its splits: they share keys in L2. Heads take turns, so many at a time that their keys and values lie in the L2. Turns go to and
// fro as well, the last with the most first: a jump from few keys to many would leave some blocks with more than others. With more
// requests than fit in shared memory tiles keep their order, last first.
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

// The line of an unlike batch, whose tiles come first; the others are dealt as ever. It stays in shared memory: see Scheduler::resume.
struct CutLine {
  int at = 0, end = 0;  // of this block's share
  int share = 1;
  int limit = 1 << 30;  // tiles of rows that take more tiles of keys are cut
  int cut = 0;          // so many of each head
};

template <class C>
struct Scheduler : Progress {
  using Tiles = RequestTiles<C::kTileRows / C::kGroup, C::kTileKv, C::kCausal>;
  static constexpr int kLeast = kLeastCut / C::kTileKv, kEverything = 0x7fffffff;

  const WgmmaPrefillParams& p;
  Lengths* lengths;  // in shared memory
  CutLine& line;     // in shared memory
  __device__ __forceinline__ Scheduler(const WgmmaPrefillParams& params, Lengths* shared, CutLine& line)
      : p(params), lengths(shared), line(line) {}

  // Once, before the first work.
  __device__ __forceinline__ void survey() {
    items = p.slots, heads = p.kv_heads;
    float bytes = kL2 / kManyHeads;  // of a head
    float least_load = 0.f;          // of a block, in tiles of keys, at least, where requests have no fewer keys than rows
    if (ranked()) {
      int longest = 0, tiles = 0, tokens = 0, pairs = 0;
#pragma unroll 1
      for (int r = threadIdx.x % 32; r < p.base.batch; r += 32) {
        const Lengths n = read_lengths(r);
        lengths[r] = n;
        longest = max(longest, n.kv);
        tiles += tiles_of(n), tokens += n.kv;
        if constexpr (kCutsByLengths<C>) pairs += tiles_of(n) * (min(n.kv, 1 << 18) / C::kTileKv);
      }
      __syncwarp();
      cost = dearest = (__reduce_max_sync(0xffffffffu, longest) + C::kTileKv - 1) / C::kTileKv;
      items = __reduce_add_sync(0xffffffffu, tiles);
      if constexpr (kCutsByLengths<C>) {
        const float all = static_cast<float>(__reduce_add_sync(0xffffffffu, pairs) * (C::kCausal ? 0.5f : 1.f));
        least_load = max(all, 0.f) * p.kv_heads / gridDim.x;
      }
      bytes = static_cast<float>(__reduce_add_sync(0xffffffffu, tokens)) * ((C::kHeadDim + C::kHeadDimVo) * C::kKvBytes);
    }
    if constexpr (kCutsByLengths<C>) {
      if (threadIdx.x % 32 == 0) line = CutLine();
      __syncwarp();
      // Of ranked requests a bound says of most batches that nothing is cut, before the rest of the code comes from memory.
      if (rarely(!ranked() || is_uneven(dearest, least_load, kLeast))) plan_cut();
      __syncwarp();
    }
    items *= heads * splits();
#pragma unroll 1
    while (heads * bytes > kL2 && heads % 2 == 0 && items / 2 >= static_cast<int>(kFewRounds * gridDim.x)) heads /= 2, items /= 2;
  }

  __device__ __forceinline__ bool ranked() const { return p.base.batch <= kMaxRanked; }
  __device__ __forceinline__ int cut() const { return kCutsByLengths<C> ? line.cut : 0; }
  __device__ __forceinline__ int splits() const { return kMergesLater<C> ? p.base.num_splits : 1; }

  __device__ __forceinline__ Lengths read_lengths(int request) const {
    return {q_rows(p.base, request).count(), kv_length<C::kTable>(p.base.table, request)};
  }
  __device__ __forceinline__ Lengths known(int request) const {
    return ranked() ? lengths[request] : read_lengths(request);
  }
  __device__ __forceinline__ static int tiles_of(const Lengths& n) { return Tiles{n}.count(); }
  __device__ __forceinline__ static int cheap_of(const Lengths& n, int limit) { return Tiles{n}.cheap(limit); }
  // Over all requests, the tiles that take more than `limit`.
  __device__ __forceinline__ int dearer(int limit) const {
    int count = 0;
#pragma unroll 1
    for (int r = threadIdx.x % 32; r < p.base.batch; r += 32) count += tiles_of(lengths[r]) - cheap_of(lengths[r], limit);
    return __reduce_add_sync(0xffffffffu, count);
  }

  // Of all requests, one head each. dearer: tiles that take more than `limit`; line: keys that those see; most: the most tiles of keys
  // that one of the others takes.
  struct Seen {
    int dearer = 0, line = 0, most = 0;
    float keys = 0.f;  // of all tiles
  };
  __device__ __forceinline__ Seen look(int limit) const {
    Seen seen;
#pragma unroll 1
    for (int r = threadIdx.x % 32; r < p.base.batch; r += 32) {
      const Tiles tiles{known(r)};
      const int count = tiles.count(), cheap = tiles.cheap(limit);
      seen.dearer += count - cheap;
      seen.line += tiles.keys_of(cheap, count);
      seen.most = max(seen.most, cheap > 0 ? tiles.cost(cheap - 1) : 0);
      seen.keys += tiles.all_keys();
    }
    seen.dearer = __reduce_add_sync(0xffffffffu, seen.dearer), seen.line = __reduce_add_sync(0xffffffffu, seen.line);
    seen.most = __reduce_max_sync(0xffffffffu, seen.most);
    seen.keys = warp_sum(seen.keys);
    return seen;
  }

  // Which tiles are cut, and the share of this block; nothing is cut where blocks end evenly without. If they do not, tiles stay whole
  // that take at most half of the longest, which leaves a few long ones apart from all others; and where those do not end evenly
  // either, tiles that take so little that it does not matter. One loop for all, or the code would be several times as long.
  __device__ __forceinline__ void plan_cut() {
    enum { kAll, kHalf, kLittle } stage = kAll;
    int limit = 0x7fffffff / C::kTileKv, most = 0, beyond = 0;
    float load = 0.f;  // of a block
    const float blocks = gridDim.x, each = 1.f / blocks;
    Rounds rounds;
#pragma unroll 1
    for (int layer = -1;; layer += 2) {
      const Seen seen = look(layer < 0 ? limit : most * layer / 8);
      if (layer < 0) {
        most = seen.most, beyond = seen.dearer * p.kv_heads;
        if (stage == kAll) {
          load = seen.keys * p.kv_heads * each * (1.f / C::kTileKv);
          if (!is_uneven(most, load, kLeast) || seen.keys * p.kv_heads >= kMostKeys) return;
          limit = most;
        }
        if (stage == kLittle) {
          set_share(limit, seen);
          return;
        }
        rounds = Rounds();
        continue;
      }
      rounds.add_layer(static_cast<float>(seen.dearer * p.kv_heads - beyond) * each);
      if (layer < 7) continue;
      const bool uneven = is_uneven(rounds.excess(most / 4.f), load, kLeast);
      if (stage == kAll && !uneven) return;
      if (stage == kAll) limit /= 2; else if (uneven) limit = static_cast<int>(load / 4.f) + kLeast;
      stage = stage == kAll ? kHalf : kLittle;
      layer = -3;
    }
  }
  __device__ __forceinline__ void set_share(int limit, const Seen& seen) {
    if (ranked()) items -= seen.dearer, above = seen.dearer, cost = dearest = min(dearest, limit);
    const int keys = seen.line * p.kv_heads, share = share_of(keys, gridDim.x);
    const int at = min(keys, share * static_cast<int>(blockIdx.x));
    if (threadIdx.x % 32 == 0) line = {at, min(keys, at + share), share, limit, seen.dearer};
  }

  // This block's part of the tile that lies at `at` on the line: its keys, which are none where the tile begins less than a tile of
  // keys before the share ends. Goes on to the next.
  __device__ __forceinline__ KvRange find_part(Work& work, int& number) {
    int& request = work.tile.request;
    const int at = line.at;
    int behind = at, own = 0;
    Lengths n{0, 0};
    request = 0;
#pragma unroll 1
    for (int first = 0; first < p.base.batch; first += 32) {
      const int r = first + threadIdx.x % 32;
      n = r < p.base.batch ? known(r) : Lengths{0, 0};
      own = Tiles{n}.keys_of(cheap_of(n, line.limit), tiles_of(n));
      int until = own * p.kv_heads;  // sum over this and earlier lanes
#pragma unroll 1
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, until, step);
        if (threadIdx.x % 32 >= step) until += other;
      }
      const uint32_t past = __ballot_sync(0xffffffffu, until > behind);
      if (past != 0) {
        const int lane = __ffs(past) - 1;
        request = first + lane;
        n = {__shfl_sync(0xffffffffu, n.q, lane), __shfl_sync(0xffffffffu, n.kv, lane)};
        own = __shfl_sync(0xffffffffu, own, lane);
        behind -= __shfl_sync(0xffffffffu, until, lane) - own * p.kv_heads;
        break;
      }
      behind -= __shfl_sync(0xffffffffu, until, 31);
    }
    work.head = behind / max(own, 1);
    behind -= work.head * own;
    const Tiles tiles{n};
    const int first = tiles.cheap(line.limit);
    int low = first, high = tiles.count() - 1;
#pragma unroll 1
    while (low < high) {  // the first tile that ends behind that place
      const int middle = (low + high) / 2;
      if (tiles.keys_of(first, middle + 1) > behind) high = middle; else low = middle + 1;
    }
    number = low;
    const int begin = at - behind + tiles.keys_of(first, low), keys = max(tiles.keys(low), 1);
    __syncwarp();
    if (threadIdx.x % 32 == 0) line.at = max(begin + keys, at + 1);  // on, whatever lengths have become meanwhile
    __syncwarp();
    return part_of_tile({static_cast<uint32_t>(begin), static_cast<uint32_t>(keys), static_cast<uint32_t>(line.share)}, work);
  }
  __device__ __forceinline__ static KvRange part_of_tile(const TileCut<C::kTileKv>& cut, Work& work) {
    const int block = blockIdx.x, first = cut.first(), last = min(cut.last(), static_cast<int>(gridDim.x) - 1);
    work.split = TilePart{block - first, last - first + 1}.number();
    if (block < first) return {0, 0};
    return {block > first ? cut.begin(block) * C::kTileKv : 0, block < last ? cut.begin(block + 1) * C::kTileKv : kEverything};
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

  // False if the item is no work: a slot without rows, or a tile that lies on the line.
  __device__ __forceinline__ bool find(int item, Work& work) {
    const int now = item / items;
    const bool rises = ranked() && (p.kv_heads / heads - now) % 2 == 0;
    if (rises || now != turn) turn = now, cost = dearest, above = cut();
    item %= items;
    if (rises) item = items - 1 - item;
    work.head = turn * heads + item % heads;
    item /= heads;
    work.split = item % splits();
    int number;
    RowTile& tile = work.tile;
    if (ranked()) {
      find_ranked(cut() + item / splits(), tile.request, number);
    } else {
      find_in_order(item / splits(), tile.request, number);
    }
    if (!set_row_tile<C>(p.base, number, tile)) return false;
    work.range = part_of<C>(p.base, visible_range<C>(p.base, tile), work.split);
    set_tiles<C>(p.base, work);
    return !kCutsByLengths<C> || ranked() || work.tiles <= line.limit;
  }

  // In shared memory from work to work: registers are scarce where threads copy.
  __device__ __forceinline__ void resume(const Progress& kept) { static_cast<Progress&>(*this) = kept; }
  __device__ __forceinline__ void keep(Progress& kept) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) kept = *this;
    __syncwarp();
  }

  // This block's next part of a tile of the line; false if there are no more.
  __device__ __forceinline__ bool find_cut(Work& work) {
#pragma unroll 1
    while (line.at < line.end) {
      int number;
      const KvRange own = find_part(work, number);
      if (own.end == 0 || !set_row_tile<C>(p.base, number, work.tile)) continue;
      work.range = visible_range<C>(p.base, work.tile);
      work.range = {max(work.range.begin, own.begin), min(work.range.end, own.end)};
      set_tiles<C>(p.base, work);
      if (work.tiles > 0) return true;
    }
    return false;
  }

  // The next work of this block, in every lane; rows 0 when there is none.
  __device__ __forceinline__ Work next() {
    Work work{};
    if constexpr (kCutsByLengths<C>)
      if (rarely(line.at < line.end) && find_cut(work)) return work;
    for (;; ++round) {
      const int blocks = gridDim.x, block = blockIdx.x;
      const int all = items * (p.kv_heads / heads);
      if (round * blocks >= all) break;
      const int item = round * blocks + (ranked() && (round & 1) ? blocks - 1 - block : block);
      if (item >= all || !find(item, work)) continue;
      if (work.tiles > 0) return ++round, work;
      write_empty<C>(p.base, work);
    }
    if constexpr (kCutsByLengths<C>) work.split = 0;  // of a tile that was passed over: it would take the place of a part
    work.tile.rows = 0;
    return work;
  }
};

}  // namespace opfacade
