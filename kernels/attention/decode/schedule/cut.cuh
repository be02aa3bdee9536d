// Partition of the keys of a decode into work items: plain arithmetic, which tests also compile for the host. A work unit
// consists of all key tiles of one request and one head block. A work item is a contiguous part of a unit. If a unit has
// several items, each item stores a partial result in a workspace slot.
#pragma once
#include <stdint.h>

namespace opfacade {

struct WorkItem {
  int request;
  int head;       // head block, over all kv heads
  int first_key;  // first visible key
  int begin;      // first key of the item's tiles; may precede first_key
  int end;
  // even shares: index of the unit's first tile among all tiles of the batch; fixed, pieces: the request's first slot / head
  // blocks
  int unit_start;
  int count;    // even shares: tiles of the unit; fixed, pieces: splits of the unit
};

// The index of an item among the `count` partials of its unit, and the slots of the partials.
struct Partials {
  int index;
  int count;
  int first_slot;  // slot of partial 0; the others are next_slot, next_slot + step, ...
  int next_slot;
  int step;

  __device__ __forceinline__ int slot(int i) const { return i == 0 ? first_slot : next_slot + (i - 1) * step; }
};

constexpr int kScheduleTile = 64;  // items start at multiples of this in every split mode, so that all modes use the same tiles

// Fixed chunks: the partition depends on the request's own length only, so that no batch can change its bits.
__device__ __forceinline__ int fixed_splits(int kv_len, int first_key, int chunk) {
  const int chunks = kv_len == 0 ? 0 : (kv_len - 1) / chunk + 1;
  return max(1, chunks - first_key / chunk);
}

__device__ __forceinline__ void set_fixed_keys(int kv_len, int chunk, int split, WorkItem& item) {
  const int start = (item.first_key / chunk + split) * chunk;
  item.begin = start + max(item.first_key - start, 0) / kScheduleTile * kScheduleTile;
  item.end = kv_len - start > chunk ? start + chunk : kv_len;
}

constexpr int kCountBits = 16;  // low bits of an arrival counter: decode/schedule/count.cuh
constexpr int kMaxPartials = (1 << kCountBits) - 1;  // partials of one work unit

__device__ __forceinline__ int larger_chunk(int chunk) { return chunk <= INT32_MAX / 2 ? 2 * chunk : INT32_MAX; }

// kAuto and kPieces: the partition depends on the lengths, and every CTA derives the same one. kAuto: all tiles are numbered in
// order, unit by unit, and CTA b takes `share` tiles from b * share on (stream-K). share = 0: CTA b takes whole units b, b +
// CTAs, ... and nothing is merged.
constexpr int kMinShareTiles = 2;  // minimum tiles per share: the merge of a smaller share costs more than it saves

// tiles, units: totals of the batch; max_tiles: tiles of the longest unit; blocks: resident CTAs. Returns 0 (whole units) if
// whole units keep at least 7/8 of the CTAs busy for the longest sequence of units; the grid then has more CTAs, which start
// when others end.
__device__ __forceinline__ int even_share(int64_t tiles, int units, int max_tiles, int blocks) {
  const int rounds = (units + blocks - 1) / blocks;
  if (8 * tiles >= 7 * static_cast<int64_t>(rounds) * max_tiles * blocks) return 0;
  const int share = max(kMinShareTiles, static_cast<int>((tiles + blocks - 1) / blocks));
  if (static_cast<int64_t>(units) * max_tiles != tiles || share >= max_tiles) return share;
  // Units of equal length: round the share up, by at most 1/16, to one that divides a unit, so that a CTA touches one unit
  // only.
  const int partials = max_tiles / share, divided = (max_tiles + partials - 1) / partials;
  return divided <= share + share / 16 && divided * partials == max_tiles ? divided : share;
}

// A request, its count (tiles or splits), and the sum of the counts of all earlier requests.
struct RequestPosition {
  int request;
  int before;
  int count;
};

// With kPieces, a CTA has one item, which is a whole unit or a split of a long unit. True if all units are nearly as long as
// the longest, so that the order of the units does not matter.
__device__ __forceinline__ bool nearly_equal(int64_t tiles, int batch, int max_tiles) {
  return 8 * tiles >= 7 * static_cast<int64_t>(batch) * max_tiles;
}

// Units of nearly equal length. If all units are resident at once, each has `count` splits. Otherwise they run unsplit, wave by
// wave, and the units of an incomplete last wave are split to fill it.
struct EqualPartition {
  int leading;  // requests before the tail
  int count;    // splits per request before the tail
  int tail;     // splits per request of the tail

  // split_index numbers the splits request by request.
  __device__ __forceinline__ RequestPosition find(int split_index) const {
    const int before = leading * count;
    if (split_index < before) return {split_index / count, split_index / count * count, count};
    const int request = (split_index - before) / tail;
    return {leading + request, before + request * tail, tail};
  }
  // The index of the first split that needs a slot.
  __device__ __forceinline__ int first_split() const { return count == 1 ? leading : 0; }
};

// wave: the number of requests whose unsplit units are resident at once.
__device__ __forceinline__ EqualPartition equal_partition(int batch, int max_tiles, int wave) {
  const int finest = max(1, max_tiles / kMinShareTiles);
  if (batch <= wave) return {batch, min(wave / batch, finest), 1};
  const int leading = batch / wave * wave, rest = batch - leading;
  return {leading, 1, rest == 0 ? 1 : min(wave / rest, finest)};
}

// Units of different lengths: no split is longer than `longest` tiles. Splits are numbered by size class, long splits first,
// because the hardware starts CTAs in order.
constexpr int kSplitClasses = 4;
constexpr int kMaxSplitTiles = 1 << 26;

__device__ __forceinline__ int split_count(int tiles, int longest) {
  return tiles <= longest ? 1 : (tiles + longest - 1) / longest;
}

// Class 0 contains the longest splits. A split of a divided unit is longer than longest / 2, so it is in class 0 or 1. Few
// undivided units are in these classes, so the units of both classes get slots.
__device__ __forceinline__ int split_class(int tiles, int count, int longest) {
  const int quarters = 4 * tiles, all = longest * count;
  return (quarters <= 3 * all) + (quarters <= 2 * all) + (quarters <= all);
}

// The value of `longest` for which all splits are resident at once: an even share of all tiles, plus 1/16 + 1 for remainders.
__device__ __forceinline__ int longest_concurrent_split(int64_t tiles, int resident) {
  const int64_t even = tiles >> 31 == 0 ? static_cast<int>(tiles) / resident : tiles / resident;
  return static_cast<int>(min(max(even + even / 16 + 1, static_cast<int64_t>(kMinShareTiles)), static_cast<int64_t>(kMaxSplitTiles)));
}

// The value of `longest` if the splits are not all resident at once.
__device__ __forceinline__ int longest_queued_split(int at_once) { return (5 * at_once + 6) / 7; }

// The first tile of split i.
__device__ __forceinline__ int split_start(int tiles, int count, int i) {
  const int base = tiles / count, more = tiles - base * count;
  return i * base + min(i, more);
}

// The tiles per CTA if `blocks` CTAs, of one or several clusters, divide a unit into contiguous parts.
__device__ __forceinline__ int tiles_per_cta(int count, int blocks) { return (count + blocks - 1) / blocks; }

// The clusters of a unit are adjacent in the grid, and so are the slots of their partials.
__device__ __forceinline__ Partials cluster_partials(int index, int clusters) {
  const int own = index % clusters, first = index - own;
  return {own, clusters, first, first + 1, 1};
}

// The partials of the unit of `count` tiles that starts at tile `unit_start`, for CTA `block`, with even shares. Only the first
// and the last unit of a CTA can be partial, so a CTA needs two slots.
__device__ __forceinline__ Partials share_partials(int unit_start, int count, int share, int block) {
  const int first_block = unit_start / share, last_block = (unit_start + count - 1) / share;
  const int first_slot = 2 * first_block + (unit_start != first_block * share);
  return {block - first_block, last_block - first_block + 1, first_slot, 2 * (first_block + 1), 2};
}

}  // namespace opfacade
