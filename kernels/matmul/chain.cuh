// The sums of a tile as one chain of wgmma k-steps in the order of k.
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
      WgmmaLayouts<typename C::T, C::kColumns, C::kXAcross, C::kWeightAcross>::multiply(
          sums, this->x_steps(panel), this->weight_steps(panel), accumulate || panel > 0);
    }
    wgmma_commit();
  }

  // Products of a step run while the stage before it is released.
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams&, const Tiles<C>& tiles, int) {
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

}  // namespace opfacade
