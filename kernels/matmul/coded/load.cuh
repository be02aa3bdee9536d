// Producer of a matmul with coded weights. TMA loads codes and x unchanged; threads copy the tensors that TMA cannot load.
#pragma once
#include "kernels/matmul/coded/rings.cuh"
#include "kernels/matmul/gathered.cuh"
#include "kernels/matmul/load.cuh"

namespace opfacade {

// Whether each of the kAside CTAs loads a part of x for all of them. Threads that copy load only for their own CTA.
template <class C>
__device__ __forceinline__ bool shares_x(const MatmulParams& p) {
  return C::kAside > 1 && p.mapped != 0;
}

// Loader of one team. If threads copy, kThreads threads call it; if TMA loads, one thread calls it.
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

  // Called by one thread if TMA loads codes and x; called by all threads if rows of x are gathered or if threads copy.
  __device__ __forceinline__ void load_codes(const Tile& tile, int k) {
    const uint32_t to = smem.codes(codes_ring.stage), full = smem.codes_full(codes_ring.stage);
    codes_ring.wait_empty(smem.codes_empty(codes_ring.stage));
    if (p.mapped != 0) {
      if (!C::kGather || threadIdx.x == 0) {
        mbarrier_arrive_expect(full, Shared::kCodes);
        tma_load(to, p.weight_map, full, BoxAt{{k / 2, tile.column, tile.weight, 0, 0}});
      }
    } else {
      copy_panels<CopiedPanels<1, 1>, C::kColumns, false>(to, p.weight, tile.weight, tile.column, p.columns, k / 2, p.k / 2,
                                                          threadIdx.x % kThreads, kThreads);
      mbarrier_arrive(full);
    }
    codes_ring.advance();
  }

 private:
  __device__ __forceinline__ void load_x(const Tile& tile, int k, int stop) {
    const uint32_t to = smem.x(x_ring.stage), full = smem.x_full(x_ring.stage);
    x_ring.wait_empty(smem.x_empty(x_ring.stage));
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
      publish_writes(full);
    }
    x_ring.advance();
  }
};

// Config of one panel of gathered rows of x (see gathered.cuh).
template <class C>
struct GatheredPanel : C {
  static constexpr int kPanels = 1;
  static constexpr bool kSwapped = true;
};

// Loader of gathered rows of x, called by all threads. cp.async copies rows whose chunks are aligned; others are copied slowly.
// Copies of kDepth panels are in flight, also across tiles. A stage of codes is released only after all of its panels of x have
// arrived. So before a stage of codes is loaded, all panels in flight must belong to the two stages before it.
template <class C>
struct GatheredLoader {
  using Panel = GatheredPanel<C>;
  static constexpr int kDepth = C::kXStages < 8 ? C::kXStages - 2 : 5;
  static_assert(C::kCodeStages == 3 && C::kXStages >= kDepth + 2, "two stages of codes have a whole and a part of one");
  const MatmulParams& p;
  const CodedShared<C>& smem;
  CodedLoader<C>& codes;
  Ring<C::kXStages> ring, done;
  int begun, last, before;  // panels in flight; panels of the latest stage of codes; panels of the stage before that

  __device__ __forceinline__ void load(const Tile& tile) {
    const GatheredRows<Panel> rows(p, tile);
#pragma unroll 1
    for (int k = 0; k < p.k; k += kPanel<C>) {
      if (k % kCodesStep == 0) {
        if (begun > last + before) end();
        before = last, last = 0;
        codes.load_codes(tile, k);
      }
      ring.wait_empty(smem.x_empty(ring.stage));
      if (p.x_wide != 0) rows.begin(smem.x(ring.stage), k); else copy_rows<Panel>(p, smem.x(ring.stage), tile, k);
      cp_async_commit();
      ring.advance(), ++last;
      if (begun == kDepth) cp_async_wait<kDepth>(), hand_on(); else ++begun;
    }
  }
  __device__ __forceinline__ void end() {
    cp_async_wait<0>();
    for (; begun > 0; --begun) hand_on();
  }

 private:
  __device__ __forceinline__ void hand_on() {
    publish_writes(smem.x_full(done.stage));
    done.advance();
  }
};

template <class C>
__device__ __forceinline__ void produce_gathered(const MatmulParams& p, const CodedShared<C>& smem, const CodedTiles<C>& tiles) {
  static_assert(C::kAlong == 1 && C::kAside == 1 && C::kXPanels == 1, "one team has all of k, a panel at a time");
  CodedLoader<C> codes{p, smem, {}, {}};
  GatheredLoader<C> loader{p, smem, codes, {}, {}, 0, 0, 0};
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride()) loader.load(tiles.at(index));
  loader.end();
}

template <class C>
__device__ __forceinline__ void produce_coded(const MatmulParams& p, const CodedShared<C>& smem, const CodedTiles<C>& tiles) {
  constexpr int kThreads = CodedLoader<C>::kThreads;
  if constexpr (C::kGather) return produce_gathered<C>(p, smem, tiles);
  if (p.mapped != 0 && (threadIdx.x % kThreads / 32 != 0 || !elected())) return;
  CodedLoader<C> loader{p, smem, {}, {}};
  const SegmentsOf<C> segments(p, smem.team);
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride())
    for (int segment = segments.first; segment < segments.stop; ++segment) loader.load(tiles.at(index), Segment(p, segment));
}

}  // namespace opfacade
