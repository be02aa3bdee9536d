// The sums of a tile as one chain of wgmma k-steps in the order of k, or of segments of it that are added in f32.
#pragma once
#include "kernels/matmul/stage_reader.cuh"

namespace opfacade {

template <class C>
struct ChainConsumer : StageReader<C> {
  using Sums = float[C::kColumns / 2];
  using StageReader<C>::smem;
  using StageReader<C>::ring;

  // Issues the products of one stage.
  __device__ __forceinline__ void multiply(Sums& sums, bool accumulate) const {
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
#pragma unroll
      for (int term = 0; term < C::kTerms; ++term) {
        WgmmaLayouts<typename C::T, C::kColumns, C::kXAcross, C::kWeightAcross>::multiply(
            sums, this->x_steps(panel), this->weight_steps(term * C::kPanels + panel), accumulate || panel + term > 0);
      }
    }
    wgmma_commit();
  }

  // Products of a step run while the stage before it is released.
  template <class All>
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams&, const All& tiles, int) {
    int before = 0;
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step) {
      mbarrier_wait(smem.full(ring.stage), ring.parity);
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

// Adds the sums of segments in their order, as clusters do (split.cuh): for many rows, which need no more CTAs.
template <class C>
struct SegmentConsumer : ChainConsumer<C> {
  using Sums = typename ChainConsumer<C>::Sums;

  template <class All>
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams& p, const All& tiles, int) {
    const int length = p.segment / (C::kPanels * kPanel<C>);
    All part = tiles;
#pragma unroll 1
    for (int first = 0; first < tiles.steps; first += length) {
      Sums found;
      part.steps = min(length, tiles.steps - first);
      ChainConsumer<C>::sum(found, p, part, 0);
#pragma unroll
      for (int i = 0; i < C::kColumns / 2; ++i) sums[i] = first == 0 ? found[i] : sums[i] + found[i];
    }
  }
};

}  // namespace opfacade
