// Sums a tile as one chain of wgmma k-steps in the order of k, or as several segments of k whose sums are added in f32.
#pragma once
#include "kernels/matmul/stage_reader.cuh"

namespace opfacade {

template <class C, class Reader = StageReader<C>, int kWidth = C::kColumns>
struct ChainConsumer : Reader {
  using Sums = float[kWidth / 2];
  using Reader::smem;
  using Reader::ring;

  // Issues the products of one stage.
  __device__ __forceinline__ void multiply(Sums& sums, bool accumulate) const {
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
#pragma unroll
      for (int term = 0; term < C::kTerms; ++term) {
        WgmmaLayouts<typename C::T, kWidth, Reader::kMAcross, Reader::kNAcross>::multiply(
            sums, this->on_m(panel), this->on_n(term * C::kPanels + panel), accumulate || panel + term > 0);
      }
    }
    wgmma_commit();
  }

  // While the products of a step run, the stage of the previous step is released.
  template <class All>
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams&, const All& tiles, int) {
    int before = 0;
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step) {
      ring.wait_full(smem.full(ring.stage));
      multiply(sums, step > 0);
      if (step > 0) {
        wgmma_wait<1>();
        this->release(before);
      }
      before = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    pin(sums);
    this->release(before);
  }
};

// Adds the sums of segments in order, as clusters do (split.cuh). For many rows, where one CTA per tile is enough.
template <class C, class Reader = StageReader<C>, int kWidth = C::kColumns>
struct SegmentConsumer : ChainConsumer<C, Reader, kWidth> {
  using Chain = ChainConsumer<C, Reader, kWidth>;
  using Sums = typename Chain::Sums;

  template <class All>
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams& p, const All& tiles, int) {
    const int length = p.segment / (C::kPanels * kPanel<C>);
    All part = tiles;
#pragma unroll 1
    for (int first = 0; first < tiles.steps; first += length) {
      Sums found;
      part.steps = min(length, tiles.steps - first);
      Chain::sum(found, p, part, 0);
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) sums[i] = first == 0 ? found[i] : sums[i] + found[i];
    }
  }
};

}  // namespace opfacade
