// The producer of a product: TMA, or threads that copy elements of any stride and alignment.
#pragma once
#include "kernels/matmul/tiles.cuh"

namespace opfacade {

// A panel of the weight; in a cluster the part of this CTA, for all.
template <class C>
__device__ __forceinline__ void load_weight(uint32_t to, const MatmulParams& p, uint32_t full, BoxAt at) {
  if constexpr (C::kCluster == 1) {
    tma_load(to, p.weight_map, full, at);
  } else {
    constexpr int kPart = C::kColumns / C::kCluster;
    const int first = Tiles<C>::rank() * kPart;
    at.x[1] += first;
    tma_load_multicast(to + first * 128, p.weight_map, full, (1 << C::kCluster) - 1, at);
  }
}

// Loads the tiles of all steps, by one thread. Elements outside a tensor arrive as zeros.
template <class C>
__device__ __forceinline__ void load_mapped(const MatmulParams& p, const MatmulShared<C>& smem, const Tiles<C>& tiles) {
  Ring<C::kStages> ring;
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    for (int step = 0; step < tiles.steps; ++step, ring.advance()) {
      const uint32_t full = smem.full(ring.stage);
      mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
      mbarrier_arrive_expect(full, MatmulShared<C>::kStage);
#pragma unroll
      for (int panel = 0; panel < C::kPanels; ++panel) {
        const int k = (step * C::kPanels + panel) * kPanel;
        tma_load(smem.x(ring.stage) + panel * C::kRows * 128, p.x_map, full, {{k, tile.row, tile.batch, 0, 0}});
        load_weight<C>(smem.weight(ring.stage) + panel * C::kColumns * 128, p, full, {{k, tile.column, tile.batch, 0, 0}});
      }
    }
  }
}

// Eight elements of a row, zeros outside.
__device__ __forceinline__ uint4 eight_of(const MatmulOperand& from, int64_t at, int left) {
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = 2 * i < left ? from.data[at + 2 * i * from.k] : 0;
    const uint32_t high = 2 * i + 1 < left ? from.data[at + (2 * i + 1) * from.k] : 0;
    word[i] = low | high << 16;
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// Fills the panels of one operand from row `first` and element `k`. kAcross: k is not the contiguous axis, so that neighbouring
// threads take neighbouring rows.
template <int kRows, int kPanels, bool kAcross>
__device__ __forceinline__ void copy_panels(uint32_t to, const MatmulOperand& from, int batch, int first, int rows, int k, int size) {
  constexpr int kChunks = kPanels * 8;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpgroup; i < kRows * kChunks; i += kWarpgroup) {
    const int row = kAcross ? i % kRows : i / kChunks, chunk = kAcross ? i / kRows : i % kChunks;
    const int left = first + row < rows ? size - k - chunk * 8 : 0;
    const int64_t at = batch * from.batch + (first + row) * from.row + (k + chunk * 8) * from.k;
    store_shared_16(to + chunk / 8 * kRows * 128 + panel_address(row, chunk % 8), eight_of(from, at, left));
  }
}

// The same as load_mapped, by a warpgroup.
template <class C>
__device__ __forceinline__ void load_copied(const MatmulParams& p, const MatmulShared<C>& smem, const Tiles<C>& tiles) {
  Ring<C::kStages> ring;
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    for (int step = 0; step < tiles.steps; ++step, ring.advance()) {
      const int k = step * C::kPanels * kPanel;
      mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
      copy_panels<C::kRows, C::kPanels, C::kXAcross>(smem.x(ring.stage), p.x, tile.batch, tile.row, tiles.rows, k, p.k);
      copy_panels<C::kColumns, C::kPanels, C::kWeightAcross>(smem.weight(ring.stage), p.weight, tile.batch, tile.column, p.columns, k, p.k);
      fence_async_shared();
      mbarrier_arrive(smem.full(ring.stage));
    }
  }
}

}  // namespace opfacade
