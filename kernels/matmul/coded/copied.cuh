// Matmul with coded weights for sm_80 and later, without TMA, wgmma and clusters: threads copy codes and rows of x by cp.async,
// several stages ahead, and multiply by mma.sync. A warpgroup computes 64 columns. Either each warpgroup of the CTA sums one
// segment of k, and the sums of segments are added in the order of k; or one warpgroup sums all segments in the same order.
// Codes have four or eight bits, or the weight has the type of x. Rows of x belong to one product or to groups; with kGather,
// p.x_rows contains the index of each row.
#pragma once
#include "kernels/matmul/coded/finish.cuh"
#include "kernels/matmul/coded/warps.cuh"
#include "kernels/matmul/gathered.cuh"
#include "kernels/matmul/rest.cuh"

namespace opfacade {

// Tiles of groups. Their table follows the barriers in shared memory.
template <class C>
struct CopiedGroups : GroupTiles<C> {
  __device__ __forceinline__ explicit CopiedGroups(const MatmulParams& p)
      : GroupTiles<C>(p, reinterpret_cast<int*>(dynamic_shared() + CodedShared<C>::kBytes)) {}
};

// The rows of x of a tile. A thread copies chunk `chunk` of rows line, line + kLines and so on.
template <class C>
struct CopiedRows {
  static constexpr int kChunks = 8 * C::kXPanels, kLines = kWarpgroup / kChunks, kCount = C::kTokens / kLines;
  int line, chunk;
  int taken[C::kGather ? kCount : 1];  // index of the row of x; negative: none

  __device__ __forceinline__ CopiedRows(const MatmulParams& p, const Tile& tile)
      : line(threadIdx.x % kWarpgroup / kChunks), chunk(threadIdx.x % kWarpgroup % kChunks) {
    if constexpr (C::kGather) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) taken[i] = row_taken(p, tile, tile.row + line + i * kLines);
    }
  }
  __device__ __forceinline__ int row(const Tile& tile, int i) const {
    if constexpr (C::kGather) return taken[i];
    const int found = tile.row + line + i * kLines;
    return found < tile.end ? found : -1;
  }
};

// The stages of one segment of a tile, which are loaded and read by one warpgroup. p.mapped: chunks of 16 bytes are aligned and
// complete.
template <class C>
struct CopiedStages {
  static constexpr int kStages = C::kCodeStages, kStep = 64 * C::kXPanels;
  const MatmulParams& p;
  const CodedShared<C>& smem;
  const Tile& tile;
  const CopiedRows<C>& rows;
  const Segment& segment;

  // Each thread commits one cp.async group per stage, also after the last stage, so that wait() can count groups.
  __device__ __forceinline__ void load(int stage) const {
    const int k = segment.begin + stage * kStep, slot = stage % kStages;
    if (k < segment.end) {
      if (p.mapped != 0) copy(k, slot); else copy_slowly(k, slot);
    }
    cp_async_commit();
  }
  // Waits for a stage. After the wait, all threads have read the previous stage, whose slot the next load overwrites.
  __device__ __forceinline__ void wait() const {
    cp_async_wait<kStages - 2>();
    named_sync(1 + smem.team, kWarpgroup);
  }

 private:
  static constexpr int kEach = 128 / C::kWeightBits;  // codes per chunk of 16 bytes
  // Converts a count of elements of k to a count of stored units of the weight: bytes for codes, or numbers.
  static __device__ __forceinline__ int stored(int k) { return C::kWeightBits == 4 ? (k + 1) / 2 : k; }

  __device__ __forceinline__ void copy(int k, int slot) const {
    constexpr int kSize = C::kWeightBits == 16 ? 2 : 1, kChunks = 8 * C::kLines;
    const uint8_t* codes = static_cast<const uint8_t*>(p.weight.data) + tile.weight * p.weight.batch * kSize;
#pragma unroll 4
    for (int each = 0; each < kCodesRows * kChunks / kWarpgroup; ++each) {
      const int i = each * kWarpgroup + threadIdx.x % kWarpgroup, row = i / kChunks, chunk = i % kChunks, column = tile.column + row, from = k + chunk * kEach;
      const bool valid = column < p.columns && from < segment.end;
      cp_async_16(smem.codes(slot) + chunk / 8 * kCodesPart + panel_address(row, chunk % 8), codes + (valid ? column * p.weight.row * kSize + from * C::kWeightBits / 8 : 0), valid);
    }
    const uint16_t* x = static_cast<const uint16_t*>(p.x.data) + tile.batch * p.x.batch;
    const int from = k + rows.chunk * 8;
#pragma unroll
    for (int i = 0; i < CopiedRows<C>::kCount; ++i) {
      const int line = rows.line + i * CopiedRows<C>::kLines, row = rows.row(tile, i);
      const bool valid = row >= 0 && from < segment.end;
      cp_async_16(smem.x(slot) + rows.chunk / 8 * CodedShared<C>::kPanelX + panel_address(line, rows.chunk % 8), x + (valid ? row * p.x.row + from : 0), valid);
    }
  }
  __device__ __forceinline__ void copy_slowly(int k, int slot) const {
    const int thread = threadIdx.x % kWarpgroup;
    copy_panels<CopiedPanels<C::kWeightBits == 16 ? 2 : 1, C::kLines>, kCodesRows, false>(smem.codes(slot), p.weight, tile.weight, tile.column, p.columns, stored(k), stored(p.k), thread, kWarpgroup);
    if constexpr (C::kGather) copy_rows<C>(p, smem.x(slot), tile, k);
    else copy_panels<CopiedPanels<2, C::kXPanels>, C::kTokens, false>(smem.x(slot), p.x, tile.batch, tile.row, tile.end, k, p.k, thread, kWarpgroup);
  }
};

// Multiplies a panel of 64 elements of a weight that has the type of x.
template <class C>
__device__ __forceinline__ void multiply_plain(float (&sums)[C::kTokens / 2], uint32_t weight, uint32_t x) {
  const int lane = threadIdx.x % 32;
  uint32_t a[16];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t(&own)[4] = *reinterpret_cast<uint32_t(*)[4]>(a + 4 * step);
    ldmatrix_x4(own, weight + threadIdx.x % kWarpgroup / 32 * 2048 + panel_address(lane % 16, 2 * step + lane / 16));
  }
  multiply_rows<C>(sums, a, 0, x);
}

template <class C>
__device__ __forceinline__ void sum_copied(float (&sums)[C::kTokens / 2], const MatmulParams& p, const CodedShared<C>& smem, const Tile& tile, const CopiedRows<C>& rows, const Segment& segment) {
  const CopiedStages<C> stages{p, smem, tile, rows, segment};
  named_sync(1 + smem.team, kWarpgroup);  // all threads have read the last stages of the previous segment
  for (int stage = 0; stage < C::kCodeStages - 1; ++stage) stages.load(stage);
  clear<C>(sums);
  if constexpr (C::kWeightBits == 16) {
    static_assert(C::kXPanels == 1 && C::kLines == 1, "a stage has a panel");
#pragma unroll 1
    for (int k = segment.begin, stage = 0; k < segment.end; k += CopiedStages<C>::kStep, ++stage) {
      stages.wait();
      stages.load(stage + C::kCodeStages - 1);
      multiply_plain<C>(sums, smem.codes(stage % C::kCodeStages), smem.x(stage % C::kCodeStages));
    }
  } else {
    const uint32_t both = both_codes();
    each_stage<C>(p, tile, 0, segment, [&](Decoder<C> (&decoder)[2], const CodeTables<C>& tables, int stage, int panels) {
      stages.wait();
      stages.load(stage + C::kCodeStages - 1);
      const int slot = stage % C::kCodeStages;
      multiply_stage<C>(sums, decoder, tables, both, stage, panels, line_of(smem.codes(slot)), smem.x(slot));
    });
  }
}

// Adds the sums of the team's segments in the order of k.
template <class C>
__device__ __forceinline__ void sum_segments(float (&sums)[C::kTokens / 2], const MatmulParams& p, const CodedShared<C>& smem, const Tile& tile, const SegmentsOf<C>& segments) {
  const CopiedRows<C> rows(p, tile);
  clear<C>(sums);  // for teams without a segment
#pragma unroll 1
  for (int segment = segments.first; segment < segments.stop; ++segment) {
    float found[C::kTokens / 2];
    sum_copied<C>(found, p, smem, tile, rows, Segment(p, segment));
#pragma unroll
    for (int i = 0; i < C::kTokens / 2; ++i) sums[i] = segment == segments.first ? found[i] : sums[i] + found[i];
  }
}

template <class C>
__device__ __forceinline__ void copied_tiles(const MatmulParams& p) {
  static_assert(C::kBeside == 1 && C::kSplit == 1 && C::kAside == 1, "a CTA has a tile of one warpgroup's columns");
  const CodedShared<C> smem{smem_address(dynamic_shared()), static_cast<int>(threadIdx.x) / kWarpgroup};
  const typename C::template TilesOf<C> tiles(p);
  const SegmentsOf<C> segments(p, smem.team);
  if constexpr (C::kZeroTail) {
    if (smem.team == 0) clear_rest<C>(p);
  }
  const int count = tiles.count(p);
#pragma unroll 1
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    float sums[C::kTokens / 2];
    sum_segments<C>(sums, p, smem, tile, segments);
    if constexpr (C::kAlong == 1) {
      finish_beside<C>(p, tile, 0, sums);
    } else {
      if (segments.first < segments.stop) put_partial<C>(smem.team, sums);
      __syncthreads();
      finish_along<C>(p, smem, tile, segments.all);
      __syncthreads();
    }
  }
}

}  // namespace opfacade
