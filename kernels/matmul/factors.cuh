// Scale factors of parts of 128 elements of k, from block scales. Threads of the producer store, for each row, the product of
// its scale and that of the block of columns next to the stage. Otherwise threads that multiply would wait for loads of scales
// from global memory.
#pragma once
#include "kernels/matmul/scales.cuh"
#include "kernels/pipeline/ring.cuh"
#include "kernels/ptx/warpgroup.cuh"

namespace opfacade {

// Scale factors of one tile. Thread `thread` of kThreads handles rows thread, thread + kThreads and so on.
template <class C, int kThreads>
struct Factors {
  using S = typename C::Scales;
  using X = typename Stored<typename S::X>::Bits;
  using Weight = typename Stored<typename S::Weight>::Bits;
  static constexpr int kEach = C::kRows / kThreads;  // rows per thread
  static_assert(kEach * kThreads == C::kRows, "whole rows");

  const MatmulParams& p;
  const X* x[kEach];
  const Weight* weight;
  int thread, k;  // k: size of k
  float row[C::kPanels][kEach], column[C::kPanels];

  __device__ __forceinline__ Factors(const MatmulParams& params, const Tile& tile, int number) : p(params), thread(number), k(params.k) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      // rows outside read the scale of the last row; their results are not stored
      const int taken = min(tile.row + thread + i * kThreads, tile.end - 1);
      x[i] = static_cast<const X*>(p.x_scale.data) + tile.batch * p.x_scale.batch + taken * p.x_scale.row;
    }
    weight = static_cast<const Weight*>(p.weight_scale.data) + tile.weight * p.weight_scale.batch + tile.column / 128 * p.weight_scale.row;
  }
  // Loads the scales of one step.
  __device__ __forceinline__ void read(int step) {
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      const int part = step * C::kPanels + panel;
      const bool inside = part * 128 < k;
#pragma unroll
      for (int i = 0; i < kEach; ++i) row[panel][i] = inside ? Stored<typename S::X>::load(x[i][part * p.x_scale.part]) : 0.f;
      column[panel] = inside ? Stored<typename S::Weight>::load(weight[part * p.weight_scale.part]) : 0.f;
    }
  }
  // Stores the products of the scales for a stage that is free. stage: shared address of its factors.
  __device__ __forceinline__ void put(uint32_t stage) const {
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel)
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        store_shared_4(stage + 4 * (panel * C::kRows + thread + i * kThreads), __float_as_uint(row[panel][i] * column[panel]));
  }
};

// Stores the factors of all tiles while TMA loads operands. Each warp of the producer except the first handles every third
// step. Each lane arrives: one arrival a warp would be correct, but compute-sanitizer's racecheck could not follow it.
template <class C, class All>
__device__ __forceinline__ void load_factors(const MatmulParams& p, const MatmulShared<C>& smem, const All& tiles) {
  constexpr int kWarps = kWarpgroup / 32 - 1;
  // A warp is never so far ahead of the consumers that the parity of a stage is ambiguous.
  static_assert(C::kStages >= kWarps, "another warp fills the stage before");
  const int warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32, count = tiles.count(p);
  uint32_t before = 0;  // stages of all earlier tiles
  for (int index = tiles.first(); index < count; index += tiles.stride(), before += tiles.steps) {
    Factors<C, 32> factors(p, tiles.at(index), lane);
    for (int step = (warp + kWarps - before % kWarps) % kWarps; step < tiles.steps; step += kWarps) {
      const uint32_t at = before + step, stage = at % C::kStages;
      factors.read(step);
      mbarrier_wait(smem.empty(stage), at / C::kStages % 2 ^ 1);
      factors.put(smem.factors(stage));
      mbarrier_arrive(smem.full(stage));
    }
  }
}

// Stores the factors of one tile in a warpgroup that also copies operands. The scales of a step are loaded while the operands
// of the previous step are copied.
template <class C, bool kAny = (C::kFactors)>
struct CopiedFactors {
  __device__ __forceinline__ CopiedFactors(const MatmulParams&, const Tile&, int) {}
  __device__ __forceinline__ void put(uint32_t, int) const {}
};
template <class C>
struct CopiedFactors<C, true> {
  static constexpr int kThreads = C::kRows < kWarpgroup ? C::kRows : kWarpgroup;
  Factors<C, kThreads> factors;

  __device__ __forceinline__ CopiedFactors(const MatmulParams& p, const Tile& tile, int step) : factors(p, tile, threadIdx.x % kThreads) { factors.read(step); }
  // Stores the factors that were loaded before, then loads those of step `next`.
  __device__ __forceinline__ void put(uint32_t stage, int next) {
    if (threadIdx.x % kWarpgroup < kThreads) factors.put(stage);
    factors.read(next);
  }
};

}  // namespace opfacade
