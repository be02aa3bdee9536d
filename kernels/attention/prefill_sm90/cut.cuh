// Decides which row tiles of an uneven batch may be cut, and where (split=pieces). Every CTA computes the same decision, and
// host tests run it too. The visible keys of these tiles form one sequence, the cut line. Each CTA computes an equal share of
// the line, so a tile is cut where a share ends. A share consists of whole tiles and at most two parts of cut tiles: one that
// continues a tile of an earlier CTA, and one that begins a tile.
#pragma once
#include <stdint.h>

namespace opfacade {

// The numbers of rows of q and of keys of one request.
struct Lengths {
  int q;
  int kv;
};

constexpr int kMinShareKeys = 512;  // storing and merging partials takes as long as about 512 keys
// The largest sum of visible keys over all row tiles and kv heads for which tiles are cut. Sums have 32 bits, and in a larger
// batch no tile is long compared with the work of a CTA.
constexpr float kMaxCutKeys = 1 << 30;

// The row tiles of one request, kTokens rows of q each. Under a causal mask a tile has at least as many visible keys as the
// previous one. A window is ignored: it changes neither ranks nor cuts.
template <int kTokens, int kTileKv, bool kCausal>
struct RequestTiles {
  Lengths n;

  __device__ __forceinline__ int count() const { return (n.q + kTokens - 1) / kTokens; }
  // The number of visible keys of a tile.
  __device__ __forceinline__ int keys(int tile) const {
    if constexpr (!kCausal) return max(n.kv, 0);
    return max(min(n.kv, (tile + 1) * kTokens + n.kv - n.q), 0);
  }
  // The number of key tiles of a row tile.
  __device__ __forceinline__ int cost(int tile) const { return (keys(tile) + kTileKv - 1) / kTileKv; }
  // The number of leading row tiles that cost at most `limit`.
  __device__ __forceinline__ int count_cheap(int limit) const {
    if (limit < 0) return 0;
    if (n.kv <= limit * kTileKv) return count();
    return kCausal ? max(limit * kTileKv - n.kv + n.q, 0) / kTokens : 0;
  }
  // The sum of the visible keys of the tiles [first, last), each of which must have a visible key. Intermediate values may wrap
  // around; the sum does not: see kMaxCutKeys.
  __device__ __forceinline__ int keys_of(int first, int last) const {
    const uint32_t tiles = max(last - first, 0), twice = first + last + 1;  // tiles or twice is even
    if constexpr (!kCausal) return static_cast<int>(tiles * n.kv);
    const uint32_t steps = tiles % 2 == 0 ? tiles / 2 * twice : twice / 2 * tiles;
    // the rows by which the last tile is incomplete
    const uint32_t past = tiles != 0 && last == count() ? last * kTokens - n.q : 0;
    return static_cast<int>(tiles * (n.kv - n.q) + steps * kTokens - past);
  }
  // The sum of the visible keys of all tiles, as an approximate float: it may exceed 32 bits, and the last tile counts as full.
  __device__ __forceinline__ float all_keys() const {
    const float first = count_cheap(0), last = count();
    if constexpr (!kCausal) return (last - first) * n.kv;
    return (last - first) * (n.kv - n.q + (first + last + 1.f) / 2.f * kTokens);
  }
};

// Estimates how unevenly CTAs finish if whole tiles are dealt in rounds, in order of decreasing cost and in alternating
// direction. The estimate is the excess: the largest difference in a round between the costliest tile and the mean. Costs are
// divided into layers of equal height. If a fraction x of the tiles of a round reaches into a layer, the costliest tile exceeds
// the mean by 1 - x layers.
class Rounds {
 public:
  // Adds one layer. rounds: the number of rounds that the tiles which reach into the layer fill.
  __device__ __forceinline__ void add_layer(float rounds) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round, rounds -= 1.f)
      if (rounds > 0.f) excess_[round] += max(1.f - rounds, 0.f);
  }
  // height: the cost of a layer.
  __device__ __forceinline__ float excess(float height) const {
    float most = 0.f;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) most = max(most, excess_[round]);
    return most * height;
  }

 private:
  static constexpr int kRounds = 4;  // tiles of later rounds cost less than a quarter of the load of a CTA
  float excess_[kRounds] = {};
};
// True if an excess justifies cuts: it must be more than a quarter of the mean load of a CTA, plus the smallest useful share.
// All arguments are in key tiles.
__device__ __forceinline__ bool is_uneven(float excess, float load, float least) { return excess > load / 4.f + least; }

// The parts of a tile of the cut line. at: the start of the tile on the line; keys: its visible keys; share: the length of a
// CTA's share, in keys.
template <int kTileKv>
struct TileCut {
  uint32_t at;
  uint32_t keys;
  uint32_t share;

  // The CTAs of the first and of the last part. Parts start at key tiles; a part without a key tile does not exist.
  __device__ __forceinline__ int first() const { return (at + kTileKv - 1) / share; }
  __device__ __forceinline__ int last() const { return (at + keys - 1) / share; }
  // The first key tile of a CTA's part, unless the part is the first one of its tile.
  __device__ __forceinline__ int begin(int cta) const { return (cta * share - at) / kTileKv; }
};

// The index of a part and the number of parts of its tile (at least two), packed into Work::split, where 0 means a whole tile.
struct TilePart {
  int index;
  int count;

  __device__ __forceinline__ static TilePart of(int number) { return {number & 0xffff, number >> 16}; }
  __device__ __forceinline__ int number() const { return count < 2 ? 0 : count << 16 | index; }
};

// The workspace slot of a part. A CTA has two slots; `first` is true for the first part of a tile.
__device__ __forceinline__ int part_slot(int cta, bool first) { return 2 * cta + first; }

// The length of each CTA's share of the line, in keys.
__device__ __forceinline__ int share_of(int line, int ctas) { return max((line + ctas - 1) / ctas, kMinShareKeys); }

}  // namespace opfacade
