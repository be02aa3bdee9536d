// Sums of a tile of signed bytes, exact in 32 bits. Results are f32 values that are rounded once, or the bits of the integers
// if kBits.
#pragma once
#include "kernels/matmul/stage_reader.cuh"
#include "kernels/ptx/wgmma_integers.cuh"

namespace opfacade {

template <class C>
struct IntegerConsumer : StageReader<C> {
  using Sums = float[C::kColumns / 2];
  using Integers = int32_t[C::kColumns / 2];
  using StageReader<C>::smem;
  using StageReader<C>::ring;

  __device__ __forceinline__ void multiply(Integers& found, bool accumulate) const {
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel)
      WgmmaIntegers<C::kColumns>::multiply(found, this->x_steps(panel), this->weight_steps(panel), accumulate || panel > 0);
    wgmma_commit();
  }
  // While the products of a step run, the stage of the previous step is released.
  template <class All>
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams&, const All& tiles, int) {
    Integers found;
    int before = 0;
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step) {
      ring.wait_full(smem.full(ring.stage));
      multiply(found, step > 0);
      if (step > 0) {
        wgmma_wait<1>();
        this->release(before);
      }
      before = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    pin(found);
    this->release(before);
#pragma unroll
    for (int i = 0; i < C::kColumns / 2; ++i)
      sums[i] = C::kBits ? __uint_as_float(static_cast<uint32_t>(found[i])) : static_cast<float>(found[i]);
  }
};

}  // namespace opfacade
