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
  int run;        // even cut: where this run starts in the line of all tiles; fixed: the request's first split
  int count;      // even cut: tiles of the run; fixed: the request's splits
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

// With kAuto the lengths decide, for all blocks alike, how the work is cut. A run is all tiles of one request and head block.
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
