// The producer of a product of codes: TMA brings codes and x as they lie, or threads copy what TMA cannot load.
#pragma once
#include "kernels/matmul/coded/rings.cuh"
#include "kernels/matmul/load.cuh"

namespace opfacade {

// CTAs aside load parts of x for each other; threads copy for their own.
template <class C>
__device__ __forceinline__ bool shares_x(const MatmulParams& p) {
  return C::kAside > 1 && p.mapped != 0;
}

// kThreads of a team copy; of those that TMA serves one is here.
template <class C>
struct CodedLoader {
  static constexpr int kThreads = kWarpgroup / C::kAlong;
  using Shared = CodedShared<C>;
  const MatmulParams& p;
  const Shared& smem;
  Ring<C::kCodeStages> codes_ring;
  Ring<C::kXStages> x_ring;

  __device__ __forceinline__ void load(const Tile& tile, const Segment& segment) {
#pragma unroll 1
    for (int k = segment.begin; k < segment.end; k += kCodesStep) {
      load_codes(tile, k);
      const int stop = min(segment.end, k + kCodesStep);
#pragma unroll 1
      for (int from = k; from < stop; from += C::kXPanels * kPanel<C>) load_x(tile, from, stop);
    }
  }

 private:
  __device__ __forceinline__ void load_codes(const Tile& tile, int k) {
    const uint32_t to = smem.codes(codes_ring.stage), full = smem.codes_full(codes_ring.stage);
    mbarrier_wait(smem.codes_empty(codes_ring.stage), codes_ring.parity ^ 1);
    if (p.mapped != 0) {
      mbarrier_arrive_expect(full, Shared::kCodes);
      tma_load(to, p.weight_map, full, BoxAt{{k / 2, tile.column, tile.weight, 0, 0}});
    } else {
      copy_panels<CopiedPanels<1, 1>, C::kColumns, false>(to, p.weight, tile.weight, tile.column, p.columns, k / 2, p.k / 2,
                                                          threadIdx.x % kThreads, kThreads);
      mbarrier_arrive(full);
    }
    codes_ring.advance();
  }
  __device__ __forceinline__ void load_x(const Tile& tile, int k, int stop) {
    const uint32_t to = smem.x(x_ring.stage), full = smem.x_full(x_ring.stage);
    mbarrier_wait(smem.x_empty(x_ring.stage), x_ring.parity ^ 1);
    if (p.mapped != 0) {
      const int panels = min(C::kXPanels, (stop - k) / kPanel<C>);
      constexpr int kPart = C::kTokens / C::kAside;
      const int first = CodedTiles<C>::aside() * kPart;
      const uint16_t mask = C::kAside > 1 ? ((1 << C::kAside) - 1) << CodedTiles<C>::rank(CodedTiles<C>::segment(), 0) : 0;
      mbarrier_arrive_expect(full, panels * (C::kAside > 1 ? C::kTokens : p.x_box) * 128);
      for (int panel = 0; panel < panels; ++panel)
        load_rows<kPart, false>(to + panel * Shared::kPanelX + first * 128, p.x_map, full, mask, k + panel * kPanel<C>, tile.row + first, tile.batch);
    } else {
      copy_panels<CopiedPanels<C::kSize, C::kXPanels>, C::kTokens, false>(to, p.x, tile.batch, tile.row, tile.end, k, p.k,
                                                                   threadIdx.x % kThreads, kThreads);
      fence_async_shared();
      mbarrier_arrive(full);
    }
    x_ring.advance();
  }
};

template <class C>
__device__ __forceinline__ void produce_coded(const MatmulParams& p, const CodedShared<C>& smem, const CodedTiles<C>& tiles) {
  constexpr int kThreads = CodedLoader<C>::kThreads;
  if (p.mapped != 0 && (threadIdx.x % kThreads / 32 != 0 || !elected())) return;
  CodedLoader<C> loader{p, smem, {}, {}};
  const SegmentsOf<C> segments(p, smem.team);
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride())
    for (int segment = segments.first; segment < segments.stop; ++segment) loader.load(tiles.at(index), Segment(p, segment));
}

}  // namespace opfacade
