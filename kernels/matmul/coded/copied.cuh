// The same products for sm_80 and later, without TMA, wgmma and clusters: threads copy codes and rows of x some stages ahead by
// cp.async, and multiply by mma.sync. A warpgroup has 64 columns; those of a CTA have a segment of k each and add their sums in the
// order of k, or one adds all segments in the same order.
#pragma once
#include "kernels/matmul/coded/finish.cuh"
#include "kernels/matmul/coded/warps.cuh"
#include "kernels/matmul/load.cuh"

namespace opfacade {

// One segment of the tile, by a team of a warpgroup. p.mapped: chunks of 16 bytes are aligned.
template <class C>
struct CopiedStages {
  static constexpr int kStages = C::kCodeStages;
  const MatmulParams& p;
  const CodedShared<C>& smem;
  const Tile& tile;
  const Segment& segment;

  // Each thread commits a group for each stage, also behind the last.
  __device__ __forceinline__ void load(int stage) const {
    const int k = segment.begin + stage * kCodesStep, slot = stage % kStages;
    if (k < segment.end) {
      if (p.mapped != 0) copy(k, slot); else copy_slowly(k, slot);
    }
    cp_async_commit();
  }
  // Waits for a stage. Behind it all have read the one before, whose slot the next load overwrites.
  __device__ __forceinline__ void wait() const {
    cp_async_wait<kStages - 2>();
    named_sync(1 + smem.team, kWarpgroup);
  }

 private:
  __device__ __forceinline__ void copy(int k, int slot) const {
    const int thread = threadIdx.x % kWarpgroup;
    const uint8_t* codes = static_cast<const uint8_t*>(p.weight.data) + tile.weight * p.weight.batch;
    for (int i = thread; i < kCodesRows * 8; i += kWarpgroup) {
      const int row = i / 8, chunk = i % 8, column = tile.column + row;
      const bool valid = column < p.columns && k + chunk * 32 < segment.end;
      cp_async_16(smem.codes(slot) + panel_address(row, chunk), codes + (valid ? column * p.weight.row + k / 2 + chunk * 16 : 0), valid);
    }
    const uint16_t* x = static_cast<const uint16_t*>(p.x.data) + tile.batch * p.x.batch;
    for (int i = thread; i < C::kTokens * 8 * kCodesPanels; i += kWarpgroup) {
      const int row = i / (8 * kCodesPanels), panel = i / 8 % kCodesPanels, chunk = i % 8, from = k + panel * 64 + chunk * 8;
      const bool valid = tile.row + row < tile.end && from < segment.end;
      cp_async_16(smem.x(slot) + panel * CodedShared<C>::kPanelX + panel_address(row, chunk), x + (valid ? (tile.row + row) * p.x.row + from : 0), valid);
    }
  }
  __device__ __forceinline__ void copy_slowly(int k, int slot) const {
    const int thread = threadIdx.x % kWarpgroup;
    copy_panels<CopiedPanels<1, 1>, kCodesRows, false>(smem.codes(slot), p.weight, tile.weight, tile.column, p.columns, k / 2, p.k / 2, thread, kWarpgroup);
    copy_panels<CopiedPanels<2, kCodesPanels>, C::kTokens, false>(smem.x(slot), p.x, tile.batch, tile.row, tile.end, k, p.k, thread, kWarpgroup);
  }
};

template <class C>
__device__ __forceinline__ void sum_copied(float (&sums)[C::kTokens / 2], const MatmulParams& p, const CodedShared<C>& smem, const Tile& tile, const Segment& segment) {
  const CopiedStages<C> stages{p, smem, tile, segment};
  const uint32_t both = both_codes();
  named_sync(1 + smem.team, kWarpgroup);  // the last stages of the segment before are read
  for (int stage = 0; stage < C::kCodeStages - 1; ++stage) stages.load(stage);
  clear<C>(sums);
  each_stage<C>(p, tile, 0, segment, [&](Decoder<C> (&decoder)[2], const CodeTables<C>& tables, int stage, int panels) {
    stages.wait();
    stages.load(stage + C::kCodeStages - 1);
    const int slot = stage % C::kCodeStages;
    multiply_stage<C>(sums, decoder, tables, both, stage, panels, line_of(smem.codes(slot)), smem.x(slot));
  });
}

template <class C>
__device__ __forceinline__ void copied_tiles(const MatmulParams& p) {
  static_assert(C::kBeside == 1 && C::kSplit == 1 && C::kAside == 1, "a CTA has a tile of one warpgroup's columns");
  const CodedShared<C> smem{smem_address(dynamic_shared()), static_cast<int>(threadIdx.x) / kWarpgroup};
  const CodedTiles<C> tiles(p);
  const SegmentsOf<C> segments(p, smem.team);
  const int count = tiles.count(p);
#pragma unroll 1
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    float sums[C::kTokens / 2];
    clear<C>(sums);  // of teams without a segment
#pragma unroll 1
    for (int segment = segments.first; segment < segments.stop; ++segment) {
      float found[C::kTokens / 2];
      sum_copied<C>(found, p, smem, tile, Segment(p, segment));
#pragma unroll
      for (int i = 0; i < C::kTokens / 2; ++i) sums[i] = segment == segments.first ? found[i] : sums[i] + found[i];
    }
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
