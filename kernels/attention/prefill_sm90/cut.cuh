// Which tiles of rows of an unlike batch are cut, and where: plain arithmetic that each block does alike, and tests on the host.
// Cut tiles lie behind each other on a line of keys. Each block takes an equal share of the line, so a tile is cut where a share
// ends, and a block has at most two parts of tiles: the end of one, and the beginning of another.
#pragma once
#include <stdint.h>

namespace opfacade {

struct Lengths {
  int q;
  int kv;
};

constexpr int kLeastCut = 512;  // keys: to store and merge parts takes as long as so many
// Of all tiles and heads. A batch of more is not cut: numbers have 32 bits, and no row is long beside what each block has then.
constexpr float kMostKeys = 1 << 30;

// The tiles of one request, of kTokens rows of q each. Under a causal mask a tile sees more keys than the one before it.
template <int kTokens, int kTileKv, bool kCausal>
struct RequestTiles {
  Lengths n;

  __device__ __forceinline__ int count() const { return (n.q + kTokens - 1) / kTokens; }
  // Keys that a tile sees.
  __device__ __forceinline__ int keys(int tile) const {
    if constexpr (!kCausal) return max(n.kv, 0);
    return max(min(n.kv, (tile + 1) * kTokens + n.kv - n.q), 0);
  }
  __device__ __forceinline__ int cost(int tile) const { return (keys(tile) + kTileKv - 1) / kTileKv; }
  // How many tiles, counted from the first, take at most `limit` tiles of keys.
  __device__ __forceinline__ int cheap(int limit) const {
    if (limit < 0) return 0;
    if (n.kv <= limit * kTileKv) return count();
    return kCausal ? max(limit * kTileKv - n.kv + n.q, 0) / kTokens : 0;
  }
  // Most tiles of keys that any tile of rows takes, of those that take at most `limit`.
  __device__ __forceinline__ int dearest(int limit) const {
    const int cheaper = cheap(limit);
    return cheaper == 0 ? 0 : cost(cheaper - 1);
  }
  // Keys that the tiles [first, last) see, each at least one. Steps may wrap, the sum does not: see kMostKeys.
  __device__ __forceinline__ int keys_of(int first, int last) const {
    const uint32_t tiles = max(last - first, 0), twice = first + last + 1;  // one of them is even
    if constexpr (!kCausal) return static_cast<int>(tiles * n.kv);
    const uint32_t steps = tiles % 2 == 0 ? tiles / 2 * twice : twice / 2 * tiles;
    const uint32_t past = tiles != 0 && last == count() ? last * kTokens - n.q : 0;  // rows that the last tile has not
    return static_cast<int>(tiles * (n.kv - n.q) + steps * kTokens - past);
  }
  // The same of all tiles that see a key, however many.
  __device__ __forceinline__ float all_keys() const {
    const float first = cheap(0), last = count();
    if constexpr (!kCausal) return (last - first) * n.kv;
    return (last - first) * (n.kv - n.q + (first + last + 1.f) / 2.f * kTokens);
  }
};

// Whether blocks that take tiles to and fro, those of most keys first, end unevenly: in some round a block has so much more than the
// others, by what the dearest tile of the round takes more than their mean. A quarter of a block's work is not worth a cut.
class Rounds {
 public:
  // Costs in layers of equal height; rounds: so many are filled by the tiles that reach into one.
  __device__ __forceinline__ void add_layer(float rounds) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round, rounds -= 1.f)
      if (rounds > 0.f) excess_[round] += max(1.f - rounds, 0.f);
  }
  __device__ __forceinline__ float excess(float height) const {
    float most = 0.f;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) most = max(most, excess_[round]);
    return most * height;
  }

 private:
  static constexpr int kRounds = 4;  // the dearest tile of a later one is less than a quarter of a block's work
  float excess_[kRounds] = {};
};
__device__ __forceinline__ bool is_uneven(float excess, float load, float least) { return excess > load / 4.f + least; }

// Where a tile of the line is cut. at: where it begins on the line; keys: how many it sees; share: of each block.
template <int kTileKv>
struct TileCut {
  uint32_t at;
  uint32_t keys;
  uint32_t share;

  // The blocks that have the first and the last part. A part begins and ends at whole tiles of keys, so one that would have none is none.
  __device__ __forceinline__ int first() const { return (at + kTileKv - 1) / share; }
  __device__ __forceinline__ int last() const { return (at + keys - 1) / share; }
  // The tile of keys that the part of a block begins with, where it is not the first.
  __device__ __forceinline__ int begin(int block) const { return (block * share - at) / kTileKv; }
};

// One part of `count`, two or more. It stands in one number, in which 0 is a whole tile.
struct TilePart {
  int part;
  int count;

  __device__ __forceinline__ static TilePart of(int number) { return {number & 0xffff, number >> 16}; }
  __device__ __forceinline__ int number() const { return count < 2 ? 0 : count << 16 | part; }
};

// Of two for each block: the part that begins a tile, or the one that goes on with it.
__device__ __forceinline__ int part_slot(int block, bool begins) { return 2 * block + begins; }

__device__ __forceinline__ int share_of(int line, int blocks) { return max((line + blocks - 1) / blocks, kLeastCut); }

}  // namespace opfacade
