// How the keys of a decode are cut into items: plain arithmetic, which tests compile for the host. An item is a run of keys
// of one request for one block of heads; where a request has several, each is a part and leaves its result in a slot.
#pragma once
#include <stdint.h>

namespace opfacade {

struct WorkItem {
  int request;
  int head;       // block of heads, over all kv heads
  int first_key;  // first visible key
  int begin;      // where this item's tiles start; may precede first_key
  int end;
  int run;        // even cut: where this run starts in the line of all tiles; fixed, pieces: the request's first slot, of one head block
  int count;      // even cut: tiles of the run; fixed, pieces: its splits or pieces
};

// Which of `count` parts an item is, and where they lie.
struct Parts {
  int part;
  int count;
  int first_slot;  // of part 0; the others follow from next_slot, step apart
  int next_slot;
  int step;

  __device__ __forceinline__ int slot(int i) const { return i == 0 ? first_slot : next_slot + (i - 1) * step; }
};

constexpr int kShareTokens = 64;  // items start at multiples of this, so that every way of cutting sees the same tiles

// With a fixed chunk a request is cut by its own length alone: these two see no batch, so that none can change its bits.
__device__ __forceinline__ int fixed_splits(int kv_len, int first_key, int chunk) {
  const int chunks = kv_len == 0 ? 0 : (kv_len - 1) / chunk + 1;
  return max(1, chunks - first_key / chunk);
}

__device__ __forceinline__ void set_fixed_keys(int kv_len, int chunk, int split, WorkItem& item) {
  const int start = (item.first_key / chunk + split) * chunk;
  item.begin = start + max(item.first_key - start, 0) / kShareTokens * kShareTokens;
  item.end = kv_len - start > chunk ? start + chunk : kv_len;
}

constexpr int kCountBits = 16;  // of a counter of parts: decode/schedule/count.cuh
constexpr int kMostParts = (1 << kCountBits) - 1;  // of a run

__device__ __forceinline__ int larger_chunk(int chunk) { return chunk <= INT32_MAX / 2 ? 2 * chunk : INT32_MAX; }

// With kAuto and kPieces the lengths decide, for all blocks alike, how the work is cut. A run is all tiles of one request and
// head block. kAuto:
// share 0: block b takes runs b, b + blocks, ... whole, and nothing is merged. Otherwise all tiles stand in a line, run by
// run, and block b takes `share` of them from b * share on.
constexpr int kLeastTiles = 2;  // of a share: less is not worth a merge

// tiles, runs: of the whole batch; most: tiles of the longest run; blocks: that run at once. Whole runs will do while nearly
// all blocks are busy to the end of the longest chain of them; the grid then has more blocks, which start as others end.
__device__ __forceinline__ int even_share(int64_t tiles, int runs, int most, int blocks) {
  const int rounds = (runs + blocks - 1) / blocks;
  if (8 * tiles >= 7 * static_cast<int64_t>(rounds) * most * blocks) return 0;
  const int share = max(kLeastTiles, static_cast<int>((tiles + blocks - 1) / blocks));
  if (static_cast<int64_t>(runs) * most != tiles || share >= most) return share;
  // Runs of one length: a slightly larger share that divides them leaves every block a part of one run alone.
  const int parts = most / share, divided = (most + parts - 1) / parts;
  return divided <= share + share / 16 && divided * parts == most ? divided : share;
}

// A request, what it counts for (tiles, splits or pieces), and what those before it do.
struct Place {
  int request;
  int before;
  int count;
};

// kPieces: a block has one item, a whole run or a piece of a long one, cut in one of two ways. Are all runs nearly as long as the longest, so that their order does not matter?
__device__ __forceinline__ bool nearly_equal(int64_t tiles, int batch, int most) {
  return 8 * tiles >= 7 * static_cast<int64_t>(batch) * most;
}

// Nearly equal runs: all in as many pieces as run at once, or whole, wave by wave, and those that would be alone in the
// last wave cut so that they fill it.
struct EqualCut {
  int whole;  // requests before the tail
  int count;  // pieces of each of those
  int tail;   // and of each of the others

  // unit: a piece, request by request.
  __device__ __forceinline__ Place find(int unit) const {
    const int before = whole * count;
    if (unit < before) return {unit / count, unit / count * count, count};
    const int request = (unit - before) / tail;
    return {whole + request, before + request * tail, tail};
  }
  // Slots are counted from the first request that needs any.
  __device__ __forceinline__ int first_unit() const { return count == 1 ? whole : 0; }
};

// wave: requests whose whole runs run at once.
__device__ __forceinline__ EqualCut equal_cut(int batch, int most, int wave) {
  const int finest = max(1, most / kLeastTiles);
  if (batch <= wave) return {batch, min(wave / batch, finest), 1};
  const int whole = batch / wave * wave, rest = batch - whole;
  return {whole, 1, rest == 0 ? 1 : min(wave / rest, finest)};
}

// Other runs: no piece is longer than `longest`, and the machine's own order of blocks deals them, long ones first.
constexpr int kPieceClasses = 4;
constexpr int kMostPieceTiles = 1 << 26;

__device__ __forceinline__ int piece_count(int tiles, int longest) {
  return tiles <= longest ? 1 : (tiles + longest - 1) / longest;
}

// 0 for the longest. Pieces of a run that is cut are longer than half of `longest`, so they are in the first two classes, and with
// them come so few others that slots can be counted through both.
__device__ __forceinline__ int piece_class(int tiles, int count, int longest) {
  const int quarters = 4 * tiles, all = longest * count;
  return (quarters <= 3 * all) + (quarters <= 2 * all) + (quarters <= all);
}

// `longest` where all pieces run at once: what each block would get of all tiles, and a little more, for a rest is a piece too.
__device__ __forceinline__ int piece_at_once(int64_t tiles, int resident) {
  const int64_t even = tiles >> 31 == 0 ? static_cast<int>(tiles) / resident : tiles / resident;
  return static_cast<int>(min(max(even + even / 16 + 1, static_cast<int64_t>(kLeastTiles)), static_cast<int64_t>(kMostPieceTiles)));
}

// And where they do not.
__device__ __forceinline__ int piece_in_turn(int at_once) { return (5 * at_once + 6) / 7; }

// First tile of piece i.
__device__ __forceinline__ int piece_start(int tiles, int count, int i) {
  const int base = tiles / count, more = tiles - base * count;
  return i * base + min(i, more);
}

// A team is the blocks of a cluster. They share one run, alone or with other teams, each block a contiguous piece.
__device__ __forceinline__ int team_share(int count, int blocks) { return (count + blocks - 1) / blocks; }

// The teams of a run lie side by side, and so do the slots of their parts.
__device__ __forceinline__ Parts team_parts(int index, int teams) {
  const int team = index % teams, first = index - team;
  return {team, teams, first, first + 1, 1};
}

// The parts of the run of `count` tiles from `run` on, as block `block` meets it when shares are even. A block touches its
// line's first and last run in part and all between whole, so it needs two slots.
__device__ __forceinline__ Parts even_parts(int run, int count, int share, int block) {
  const int first_block = run / share, last_block = (run + count - 1) / share;
  const int first_slot = 2 * first_block + (run != first_block * share);
  return {block - first_block, last_block - first_block + 1, first_slot, 2 * (first_block + 1), 2};
}

}  // namespace opfacade
