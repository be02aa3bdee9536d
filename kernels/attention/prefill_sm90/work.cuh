// A row tile, and the keys of it that one CTA processes.
#pragma once
#include "kernels/attention/prefill_sm90/cut.cuh"
#include "kernels/attention/prefill/finish.cuh"
#include "kernels/attention/prefill/schedule.cuh"
#include "kernels/attention/prefill/variant_of.cuh"
#include "kernels/attention/prefill_sm90/params.h"
#include "kernels/common/chunk.cuh"
#include "kernels/common/softmax.cuh"

namespace opfacade {

// A tile is masked if some key is invisible to some row, or if the tile exceeds the range. All tiles are masked if a packed
// mask or the mask of a variant hides keys too (kHidesMore).
struct MaskedTiles {
  int above;  // tiles that start after this key are masked
  int below;  // tiles that start before this key are masked

  __device__ __forceinline__ bool operator()(int start) const { return start > above || start < below; }
  // `left` tiles remain, and the first of them, at `start`, is not masked. Returns the number of tiles that remain at the next
  // masked tile, or 0 if no tile is masked.
  __device__ __forceinline__ int plain_until(int start, int left, int tile) const {
    const int64_t plain = (static_cast<int64_t>(start) - below) / tile + 1;
    return plain < left ? left - static_cast<int>(plain) : 0;
  }
};

struct Work {
  RowTile tile;  // rows == 0: no work is left for this CTA
  KvRange range;
  int head;      // kv head
  int split;     // index of the split; split=pieces: TilePart::number()
  int tiles;     // key tiles
  int last;      // start of the last tile, which is processed first
  MaskedTiles masked;
};

// Keeps the parts of tiles that a CTA computes: [0] continues a tile, [1] begins one. Must be called by one thread for each
// work.
__device__ __forceinline__ void keep_part(Work (&parts)[2], const Work& found) {
  if (found.split != 0) parts[TilePart::of(found.split).index == 0] = found;
}

// Key tiles start at multiples of kTileKv for any range, so that each box is within one page and one tile.
template <class C>
__device__ __forceinline__ int first_start(const KvRange& range) {
  return range.begin / C::kTileKv * C::kTileKv;
}
template <class C>
__device__ __forceinline__ int tile_count(const KvRange& range) {
  return range.end <= range.begin ? 0 : (range.end - first_start<C>(range) + C::kTileKv - 1) / C::kTileKv;
}

// The keys of a row tile that belong to a split. The boundaries of a fixed chunk depend only on the index of the split.
template <class C>
__device__ __forceinline__ KvRange part_of(const PrefillParams& p, KvRange range, int split) {
  if constexpr (C::kSplit == SplitMode::kFixed) {
    const int start = split * p.chunk;
    const bool rest = split == p.num_splits - 1;  // the last split takes all remaining keys
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

// Derives the facts that producer and consumers share.
template <class C>
__device__ __forceinline__ void set_tiles(const PrefillParams& p, Work& work) {
  work.tiles = tile_count<C>(work.range);
  work.last = first_start<C>(work.range) + (work.tiles - 1) * C::kTileKv;
  work.masked = masked_tiles<C>(p, work);
}

// The offset of a row of the tile in a tensor of shape [row, head], such as o or lse, computed from the strides of the tensor.
template <class C>
__device__ __forceinline__ int64_t row_in_o(const PrefillParams& p, const Work& work, int row, int64_t row_stride,
                                            int64_t head_stride) {
  const int packed = work.tile.first + row;
  return (work.tile.q_start + packed / C::kGroup) * row_stride + (work.head * C::kGroup + packed % C::kGroup) * head_stride;
}

// One warp writes the output of a row tile without visible keys; the consumers do not receive such a tile.
template <class C>
__device__ __forceinline__ void write_empty(const PrefillParams& p, const Work& work) {
#pragma unroll 1
  for (int row = threadIdx.x % 32; row < work.tile.rows; row += 32) {
    const int64_t at = row_in_o<C>(p, work, row, p.heads, 1);
    if constexpr (kMergesLater<C>) {
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

}  // namespace opfacade
