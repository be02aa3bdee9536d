// The sums of a tile of 8-bit floats: the tensor core adds chains of at most 128 elements of k, because it cuts addends far more
// than f32 does. Each chain is scaled and added to a sum in f32, in the order of k. The products of a part run while scales of the
// next are read; those of the other warpgroup run while parts are added.
#pragma once
#include "kernels/matmul/scales.cuh"
#include "kernels/matmul/stage_reader.cuh"
#include "kernels/ptx/wgmma_bytes.cuh"

namespace opfacade {

// The consumer of kinds whose scales do not differ along k: they are factors of the whole sum.
template <class C>
struct PlainParts : StageReader<C> {
  using Sums = float[C::kColumns / 2];
  using StageReader<C>::smem;
  using StageReader<C>::ring;

  __device__ __forceinline__ void multiply(Sums& part, int panel) const {
    wgmma_fence();
    Wgmma<typename C::T, C::kColumns>::ss(part, this->x_steps(panel), this->weight_steps(panel), false);
    wgmma_commit();
  }
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams&, const Tiles<C>& tiles, int) {
#pragma unroll
    for (float& one : sums) one = 0.f;
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step) {
      mbarrier_wait(smem.full(ring.stage), ring.parity);
#pragma unroll
      for (int panel = 0; panel < C::kPanels; ++panel) {
        Sums part;
        multiply(part, panel);
        wgmma_wait<0>();
        pin(part);
        if (panel + 1 == C::kPanels) this->release(ring.stage);
#pragma unroll
        for (int i = 0; i < C::kColumns / 2; ++i) sums[i] += part[i];
      }
      ring.advance();
    }
  }
};

// The consumer of blocks: a chain has one scale of each row and one of a block of columns.
template <class C>
struct BlockParts : StageReader<C> {
  using Sums = float[C::kColumns / 2];
  using S = typename C::Scales;
  using StageReader<C>::smem;
  using StageReader<C>::ring;

  // next: the k-steps of the next block of the weight.
  __device__ __forceinline__ void multiply(Sums& part, int panel, bool next) const {
    const Descriptors x = this->x_steps(panel), weight = this->weight_steps(panel);
    wgmma_fence();
    if constexpr (S::kCut == 4) {
      Wgmma<typename C::T, C::kColumns>::ss(part, x, weight, false);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if ((i >= S::kCut) == next) WgmmaOneStep<typename C::T, C::kColumns>::ss(part, x, weight, i, i != (next ? S::kCut : 0));
    }
    wgmma_commit();
  }
  // second: how many columns, from the first of this thread on, do not lie in the second block.
  static __device__ __forceinline__ void add(Sums& sums, const Sums& part, const PartScales& scales, int next, int second) {
    float factor[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int block = 0; block < (S::kTwo ? 2 : 1); ++block) factor[half][block] = scales.row[half] * scales.column[next][block];
#pragma unroll
    for (int i = 0; i < C::kColumns / 2; ++i) {
      const float* own = factor[i / 2 % 2];
      sums[i] = fmaf(part[i], S::kTwo && i / 4 * 8 + i % 2 >= second ? own[1] : own[0], sums[i]);
    }
  }
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams& p, const Tiles<C>& tiles, int index) {
    const Tile tile = tiles.at(index);
    const int thread = threadIdx.x % kWarpgroup, row = tile.row + this->group * 64 + thread / 32 * 16 + thread % 32 / 4;
    const BlockScales<C> scales{p, tile.batch, row, tiles.rows, tile.column};
    const int second = scales.next_block() - tile.column - thread % 4 * 2;
    PartScales now = scales.at(0);
#pragma unroll
    for (float& one : sums) one = 0.f;
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step) {
      mbarrier_wait(smem.full(ring.stage), ring.parity);
#pragma unroll
      for (int panel = 0; panel < C::kPanels; ++panel) {
        PartScales later;
#pragma unroll
        for (int next = 0; next < (S::kCut < 4 ? 2 : 1); ++next) {
          Sums part;
          multiply(part, panel, next != 0);
          if (next == 0) later = scales.at(step * C::kPanels + panel + 1);
          wgmma_wait<0>();
          pin(part);
          if (panel + 1 == C::kPanels && (S::kCut == 4 || next == 1)) this->release(ring.stage);
          add(sums, part, now, next, second);
        }
        now = later;
      }
      ring.advance();
    }
  }
};

}  // namespace opfacade
