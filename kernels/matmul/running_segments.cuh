// Sums segments of k without a pause between them: the products of a segment start before those of the previous segment end.
// Sums of the previous segment are added meanwhile, in the order of segments (chain.cuh computes the same sums with fewer
// registers).
#pragma once
#include "kernels/matmul/chain.cuh"

namespace opfacade {

template <class C>
struct RunningSegments : ChainConsumer<C> {
  using Sums = typename ChainConsumer<C>::Sums;
  using ChainConsumer<C>::smem;
  using ChainConsumer<C>::ring;

  template <class All>
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams& p, const All& tiles, int) {
    const int length = p.segment / (C::kPanels * kPanel<C>), steps = tiles.steps;
    Sums even, odd;
    int before = -1, step = min(length, steps);
    for (int i = 0; i < step; ++i) next(even, i > 0, before);
#pragma unroll 1
    for (bool is_first = true;; is_first = false) {
      if (step >= steps) return end(sums, even, is_first, before);
      begin(odd, even, sums, is_first, min(length, steps - step), before);
      step += length;
      if (step >= steps) return end(sums, odd, false, before);
      begin(even, odd, sums, false, min(length, steps - step), before);
      step += length;
    }
  }

 private:
  // Issues the products of a segment. The sums of the previous segment are added while the first step runs.
  __device__ __forceinline__ void begin(Sums& found, Sums& other, Sums& sums, bool is_first, int steps, int& before) {
    next(found, false, before);
    add(sums, other, is_first);
#pragma unroll 1
    for (int step = 1; step < steps; ++step) next(found, true, before);
  }
  __device__ __forceinline__ void end(Sums& sums, Sums& found, bool is_first, int before) {
    wgmma_wait<0>();
    this->release(before);
    add(sums, found, is_first);
  }
  __device__ __forceinline__ void next(Sums& found, bool accumulate, int& before) {
    ring.wait_full(smem.full(ring.stage));
    this->multiply(found, accumulate);
    wgmma_wait<1>();
    if (before >= 0) this->release(before);
    before = ring.stage;
    ring.advance();
  }
  __device__ __forceinline__ void add(Sums& sums, Sums& found, bool is_first) const {
    pin(found);
#pragma unroll
    for (int i = 0; i < C::kColumns / 2; ++i) sums[i] = is_first ? found[i] : sums[i] + found[i];
  }
};

}  // namespace opfacade
