// The producer of a product whose rows of x lie anywhere: threads copy them, and TMA loads the weight.
#pragma once
#include "kernels/matmul/load.cuh"

namespace opfacade {

// Rows of x that rows first to tile.end take; zeros for those that take none.
template <class C>
__device__ __forceinline__ void copy_rows(const MatmulParams& p, uint32_t to, const Tile& tile, int k) {
  using Bits = typename UnsignedOf<C::kSize>::Type;
  constexpr int kEach = 16 / C::kSize, kChunks = C::kPanels * 8;
  const Bits* data = static_cast<const Bits*>(p.x.data);
  const int32_t* rows = p.x_rows + static_cast<int64_t>(tile.batch) * p.rows;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpgroup; i < C::kRows * kChunks; i += kWarpgroup) {
    const int line = i / kChunks, chunk = i % kChunks, row = tile.row + line;
    const int taken = row < tile.end ? rows[row] : -1;
    const bool is = static_cast<uint32_t>(taken) < static_cast<uint32_t>(p.num_x_rows);
    const int left = is ? p.k - k - chunk * kEach : 0;
    const Bits* from = data + (is ? taken : 0) * p.x.row + (k + chunk * kEach) * p.x.k;
    const uint4 found = p.x_wide != 0 && left >= kEach ? *reinterpret_cast<const uint4*>(from) : chunk_of(from, p.x.k, left);
    store_shared_16(to + chunk / 8 * C::kRows * 128 + panel_address(line, chunk % 8), found);
  }
}

// By a warpgroup, one thread of which loads the weight where it has a map.
template <class C, class All>
__device__ __forceinline__ void load_gathered(const MatmulParams& p, const MatmulShared<C>& smem, const All& tiles) {
  static_assert(C::kCluster == 1 && !C::kXAcross, "rows of x are copied one by one");
  Ring<C::kStages> ring;
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    for (int step = 0; step < tiles.steps; ++step, ring.advance()) {
      const int k = step * C::kPanels * kPanel<C>;
      const uint32_t full = smem.full(ring.stage);
      mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
      if (p.mapped == 0) {
        copy_panels<C, C::kColumns, C::kWeightAcross>(smem.weight(ring.stage), p.weight, tile.weight, tile.column, p.columns, k, p.k);
      } else if (threadIdx.x % kWarpgroup == 0) {
        mbarrier_arrive_expect(full, MatmulShared<C>::kWeight);
#pragma unroll
        for (int panel = 0; panel < C::kPanels; ++panel) {
          const uint32_t to = smem.weight(ring.stage) + panel * C::kColumns * 128;
          load_rows<C::kColumns, C::kWeightAcross>(to, p.weight_map, full, 0, k + panel * kPanel<C>, tile.column, tile.weight);
        }
      }
      copy_rows<C>(p, smem.x(ring.stage), tile, k);
      fence_async_shared();
      mbarrier_arrive(full);
    }
  }
}

}  // namespace opfacade
