// Scheduler of the persistent CTAs; the producer warp finds work ahead of the consumers.
#pragma once
#include "kernels/attention/prefill_sm90/work.cuh"
#include "kernels/attention/lazy_softmax.cuh"
#include "kernels/ptx/warpgroup.cuh"

namespace opfacade {

// Assigns work to this CTA, by one full warp, without a plan from the host and without atomics. An item is one row tile, kv
// head and split. Row tiles are ranked by cost (their key tiles), costliest first. A round gives one item to each CTA; every
// second round gives them in reverse order of the CTAs, so that all end at about the same time. The heads of one row tile are
// consecutive, and so are its splits: they share keys in L2. The items of as many heads as fit in L2 with their K and V form a
// head round. Head rounds alternate between rising and falling cost, the last one falling: a jump from few keys to many would
// unbalance the CTAs. More than kMaxRanked requests are not ranked: their row tiles are processed from the last to the first.
constexpr int kMaxRanked = 256;
constexpr int kManyHeads = 16;         // kv heads of a head round without ranks; about eight of 132 CTAs then work on one head
constexpr float kL2 = 32 * 1048576.f;  // upper bound of the bytes of K and V in a head round: the part of L2 that they may use
constexpr int kMinRounds = 3;          // a head round has at least so many rounds; fewer would balance the CTAs badly

// The position of a CTA in its schedule.
struct Progress {
  int round = 0;       // the next round; this CTA has at most one item in each
  int heads = 0;       // kv heads of a head round
  int items = 0;       // items of a head round
  int head_round = 0;  // index of the current head round
  int max_cost = 0;    // upper bound of the cost of an item
  int cost = 0;        // upper bound of the cost of the next item; a search starts here
  int above = 0;       // row tiles that cost more than `cost`
};

// The share of this CTA of the cut line of an uneven batch: see cut.cuh. The CTA computes it before all other tiles, which stay
// whole. It is kept in shared memory: see Scheduler::resume.
struct CutLine {
  int at = 0, end = 0;  // the rest of this CTA's share, as positions on the line
  int share = 1;        // length of each CTA's share, in keys
  int limit = 1 << 30;  // row tiles that cost more than `limit` are on the line
  int cut = 0;          // number of row tiles on the line, for one head
};

template <class C>
struct Scheduler : Progress {
  using Tiles = RequestTiles<C::kTileRows / C::kGroup, C::kTileKv, C::kCausal>;
  // kMinShare is in key tiles. kNoEnd is the end of the last part of a tile.
  static constexpr int kMinShare = kMinShareKeys / C::kTileKv, kNoEnd = 0x7fffffff;

  const WgmmaPrefillParams& p;
  Lengths* lengths;  // in shared memory
  CutLine& line;     // in shared memory
  __device__ __forceinline__ Scheduler(const WgmmaPrefillParams& params, Lengths* shared, CutLine& line)
      : p(params), lengths(shared), line(line) {}

  // Must be called once, before the first work.
  __device__ __forceinline__ void survey() {
    items = p.slots, heads = p.kv_heads;
    float bytes = kL2 / kManyHeads;  // bytes of K and V of one head
    float min_load = 0.f;  // lower bound of the mean number of key tiles per CTA, if no request has fewer keys than rows
    if (ranked()) {
      int longest = 0, tiles = 0, tokens = 0, pairs = 0;  // pairs: of a row tile and a key tile
#pragma unroll 1
      for (int r = threadIdx.x % 32; r < p.base.batch; r += 32) {
        const Lengths n = read_lengths(r);
        lengths[r] = n;
        longest = max(longest, n.kv);
        tiles += tiles_of(n), tokens += n.kv;
        if constexpr (kCutsByLengths<C>) pairs += tiles_of(n) * (min(n.kv, 1 << 18) / C::kTileKv);
      }
      __syncwarp();
      cost = max_cost = (__reduce_max_sync(0xffffffffu, longest) + C::kTileKv - 1) / C::kTileKv;
      items = __reduce_add_sync(0xffffffffu, tiles);
      if constexpr (kCutsByLengths<C>) {
        const float all = static_cast<float>(__reduce_add_sync(0xffffffffu, pairs) * (C::kCausal ? 0.5f : 1.f));
        min_load = max(all, 0.f) * p.kv_heads / gridDim.x;
      }
      bytes = static_cast<float>(__reduce_add_sync(0xffffffffu, tokens)) * ((C::kHeadDim + C::kHeadDimVo) * C::kKvBytes);
    }
    if constexpr (kCutsByLengths<C>) {
      if (threadIdx.x % 32 == 0) line = CutLine();
      __syncwarp();
      // For most ranked batches this bound shows that nothing is cut, so the code of plan_cut need not be fetched.
      if (rarely(!ranked() || is_uneven(max_cost, min_load, kMinShare))) plan_cut();
      __syncwarp();
    }
    items *= heads * splits();
#pragma unroll 1
    while (heads * bytes > kL2 && heads % 2 == 0 && items / 2 >= static_cast<int>(kMinRounds * gridDim.x)) heads /= 2, items /= 2;
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
  __device__ __forceinline__ static int count_cheap(const Lengths& n, int limit) { return Tiles{n}.count_cheap(limit); }
  // The number of row tiles of all requests that cost more than `limit`.
  __device__ __forceinline__ int count_costlier(int limit) const {
    int count = 0;
#pragma unroll 1
    for (int r = threadIdx.x % 32; r < p.base.batch; r += 32) count += tiles_of(lengths[r]) - count_cheap(lengths[r], limit);
    return __reduce_add_sync(0xffffffffu, count);
  }

  // Sums over the tiles of all requests, for one head.
  struct Totals {
    int costlier = 0;  // tiles that cost more than `limit`
    int line = 0;      // the visible keys of these tiles, which is the length of the cut line
    int max_cost = 0;  // the highest cost of the other tiles
    float keys = 0.f;  // visible keys of all tiles
  };
  __device__ __forceinline__ Totals add_up(int limit) const {
    Totals seen;
#pragma unroll 1
    for (int r = threadIdx.x % 32; r < p.base.batch; r += 32) {
      const Tiles tiles{known(r)};
      const int count = tiles.count(), cheap = tiles.count_cheap(limit);
      seen.costlier += count - cheap;
      seen.line += tiles.keys_of(cheap, count);
      seen.max_cost = max(seen.max_cost, cheap > 0 ? tiles.cost(cheap - 1) : 0);
      seen.keys += tiles.all_keys();
    }
    seen.costlier = __reduce_add_sync(0xffffffffu, seen.costlier), seen.line = __reduce_add_sync(0xffffffffu, seen.line);
    seen.max_cost = __reduce_max_sync(0xffffffffu, seen.max_cost);
    seen.keys = warp_sum(seen.keys);
    return seen;
  }

  // Decides which tiles are on the cut line, and the share of this CTA. Stage kAll: nothing is cut if the CTAs would finish
  // evenly with all tiles whole. kHalf: otherwise tiles of up to half the highest cost stay whole; if the CTAs would finish
  // unevenly with these too, the limit falls to a quarter of the mean load. kQuarter: sets the share for the limit that was
  // found, either one. One loop for all stages, because a copy of it for each stage would multiply the code size.
  __device__ __forceinline__ void plan_cut() {
    enum { kAll, kHalf, kQuarter } stage = kAll;
    // limit: highest cost of a whole tile; most: highest cost among these; beyond: number of items that cost more than limit.
    int limit = 0x7fffffff / C::kTileKv, most = 0, beyond = 0;
    float load = 0.f;  // mean number of key tiles per CTA
    const float ctas = gridDim.x, each = 1.f / ctas;
    Rounds rounds;
#pragma unroll 1
    // layer -1: totals of a stage; 1, 3, 5, 7: middles of the four layers (see Rounds), in eighths of `most`.
    for (int layer = -1;; layer += 2) {
      const Totals seen = add_up(layer < 0 ? limit : most * layer / 8);
      if (layer < 0) {
        most = seen.max_cost, beyond = seen.costlier * p.kv_heads;
        if (stage == kAll) {
          load = seen.keys * p.kv_heads * each * (1.f / C::kTileKv);
          if (!is_uneven(most, load, kMinShare) || seen.keys * p.kv_heads >= kMaxCutKeys) return;
          limit = most;
        }
        if (stage == kQuarter) {
          set_share(limit, seen);
          return;
        }
        rounds = Rounds();
        continue;
      }
      rounds.add_layer(static_cast<float>(seen.costlier * p.kv_heads - beyond) * each);
      if (layer < 7) continue;
      const bool uneven = is_uneven(rounds.excess(most / 4.f), load, kMinShare);
      if (stage == kAll && !uneven) return;
      if (stage == kAll) limit /= 2; else if (uneven) limit = static_cast<int>(load / 4.f) + kMinShare;
      stage = stage == kAll ? kHalf : kQuarter;
      layer = -3;
    }
  }
  __device__ __forceinline__ void set_share(int limit, const Totals& seen) {
    if (ranked()) items -= seen.costlier, above = seen.costlier, cost = max_cost = min(max_cost, limit);
    const int keys = seen.line * p.kv_heads, share = share_of(keys, gridDim.x);
    const int at = min(keys, share * static_cast<int>(blockIdx.x));
    if (threadIdx.x % 32 == 0) line = {at, min(keys, at + share), share, limit, seen.costlier};
  }

  // Returns the key range of this CTA's part of the tile at line.at, and sets its request, head, split and number (the index
  // of the tile in its request). The range is empty if the tile begins less than a key tile before the end of the share: the
  // next CTA then has its first part. Advances line.at to the next tile.
  __device__ __forceinline__ KvRange next_part(Work& work, int& number) {
    int& request = work.tile.request;
    const int at = line.at;
    // offset: distance of `at` from the first request, head or tile not yet passed; own: keys of one head
    int offset = at, own = 0;
    Lengths n{0, 0};
    request = 0;
#pragma unroll 1
    for (int first = 0; first < p.base.batch; first += 32) {
      const int r = first + threadIdx.x % 32;
      n = r < p.base.batch ? known(r) : Lengths{0, 0};
      own = Tiles{n}.keys_of(count_cheap(n, line.limit), tiles_of(n));
      int until = own * p.kv_heads;  // becomes the inclusive prefix sum over lanes
#pragma unroll 1
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, until, step);
        if (threadIdx.x % 32 >= step) until += other;
      }
      const uint32_t past = __ballot_sync(0xffffffffu, until > offset);
      if (past != 0) {
        const int lane = __ffs(past) - 1;
        request = first + lane;
        n = {__shfl_sync(0xffffffffu, n.q, lane), __shfl_sync(0xffffffffu, n.kv, lane)};
        own = __shfl_sync(0xffffffffu, own, lane);
        offset -= __shfl_sync(0xffffffffu, until, lane) - own * p.kv_heads;
        break;
      }
      offset -= __shfl_sync(0xffffffffu, until, 31);
    }
    work.head = offset / max(own, 1);
    offset -= work.head * own;
    const Tiles tiles{n};
    const int first = tiles.count_cheap(line.limit);
    int low = first, high = tiles.count() - 1;
#pragma unroll 1
    while (low < high) {  // the first tile that ends after `offset`
      const int middle = (low + high) / 2;
      if (tiles.keys_of(first, middle + 1) > offset) high = middle; else low = middle + 1;
    }
    number = low;
    const int begin = at - offset + tiles.keys_of(first, low), keys = max(tiles.keys(low), 1);
    __syncwarp();
    if (threadIdx.x % 32 == 0) line.at = max(begin + keys, at + 1);  // advances even if the lengths have changed meanwhile
    __syncwarp();
    return part_of_tile({static_cast<uint32_t>(begin), static_cast<uint32_t>(keys), static_cast<uint32_t>(line.share)}, work);
  }
  __device__ __forceinline__ static KvRange part_of_tile(const TileCut<C::kTileKv>& cut, Work& work) {
    const int cta = blockIdx.x, first = cut.first(), last = min(cut.last(), static_cast<int>(gridDim.x) - 1);
    work.split = TilePart{cta - first, last - first + 1}.number();
    if (cta < first) return {0, 0};
    return {cta > first ? cut.begin(cta) * C::kTileKv : 0, cta < last ? cut.begin(cta + 1) * C::kTileKv : kNoEnd};
  }

  // Finds the request of the row tile with this rank, and the index of the tile in its request.
  __device__ __forceinline__ void find_ranked(int rank, int& request, int& tile) {
    int low = 0;
#pragma unroll 1
    while (low < cost) {  // finds the cost of this rank: the lowest cost that at most `rank` tiles exceed
      const int middle = (low + cost) / 2, count = count_costlier(middle);
      if (count <= rank) cost = middle, above = count; else low = middle + 1;
    }
    rank -= above;
    request = tile = 0;
#pragma unroll 1
    for (int first = 0; first < p.base.batch; first += 32) {
      const int r = first + threadIdx.x % 32;
      const Lengths n = r < p.base.batch ? lengths[r] : Lengths{0, 0};
      const int cheaper = count_cheap(n, cost - 1), same = count_cheap(n, cost) - cheaper;
      int until = same;  // becomes the inclusive prefix sum over lanes
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

  // False for an item without work: a slot without rows (see params.h), or a tile that is on the cut line.
  __device__ __forceinline__ bool find(int item, Work& work) {
    const int now = item / items;
    const bool rises = ranked() && (p.kv_heads / heads - now) % 2 == 0;
    if (rises || now != head_round) head_round = now, cost = max_cost, above = cut();
    item %= items;
    if (rises) item = items - 1 - item;
    work.head = head_round * heads + item % heads;
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

  // Loads and stores the state, which is in shared memory between two searches: registers are scarce in copying threads.
  __device__ __forceinline__ void resume(const Progress& kept) { static_cast<Progress&>(*this) = kept; }
  __device__ __forceinline__ void keep(Progress& kept) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) kept = *this;
    __syncwarp();
  }

  // The next part of a cut-line tile for this CTA; false if no part is left.
  __device__ __forceinline__ bool find_cut(Work& work) {
#pragma unroll 1
    while (line.at < line.end) {
      int number;
      const KvRange own = next_part(work, number);
      if (own.end == 0 || !set_row_tile<C>(p.base, number, work.tile)) continue;
      work.range = visible_range<C>(p.base, work.tile);
      work.range = {max(work.range.begin, own.begin), min(work.range.end, own.end)};
      set_tiles<C>(p.base, work);
      if (work.tiles > 0) return true;
    }
    return false;
  }

  // The next work of this CTA, in every lane. If no work is left, tile.rows is 0.
  __device__ __forceinline__ Work next() {
    Work work{};
    if constexpr (kCutsByLengths<C>)
      if (rarely(line.at < line.end) && find_cut(work)) return work;
    for (;; ++round) {
      const int ctas = gridDim.x, cta = blockIdx.x;
      const int all = items * (p.kv_heads / heads);
      if (round * ctas >= all) break;
      const int item = round * ctas + (ranked() && (round & 1) ? ctas - 1 - cta : cta);
      if (item >= all || !find(item, work)) continue;
      if (work.tiles > 0) return ++round, work;
      write_empty<C>(p.base, work);
    }
    if constexpr (kCutsByLengths<C>) work.split = 0;  // otherwise keep_part would keep a skipped tile as a part
    work.tile.rows = 0;
    return work;
  }
};

}  // namespace opfacade
