// Warpgroup 0 when the copy engine loads: one warp finds work and asks for Q and K (prefill_wgmma_feed.cuh), one for V, two sweep
// the masked tiles of V.
// Swept are slots outside the range, which become zeros, because 0 * NaN is NaN; values inside it that are not finite are
// only reported, see prefill_wgmma_nonfinite.cuh.
#pragma once
#include "kernels/attention/prefill_wgmma_shared.cuh"
#include "kernels/common/chunk.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void ask_for_q(const WgmmaPrefillParams& p, WgmmaShared<C>& smem, int stage, const Work& work) {
  using Shared = WgmmaShared<C>;
  const uint32_t full = smem_address(&smem.q_full[stage]), q = smem_address(smem.q[stage]);
  mbarrier_arrive_expect(full, Shared::kPanels * C::kTileRows * 128);
  const int row = work.tile.q_start + work.tile.first / C::kGroup;
#pragma unroll
  for (int panel = 0; panel < Shared::kPanels; ++panel)
    tma_load(q + panel * Shared::kQPanel, p.q_map, full, {{panel * 64, 0, work.head, row, 0}});
}

template <class C>
using Pages = RequestPages<C::kTable, C::kPow2Pages, C::kSafePages>;

// The entry for a token of the tile of keys at `start`, not checked; 0 if it lies past the tile or its range.
template <class C>
__device__ __forceinline__ int page_in_tile(const Pages<C>& pages, const Work& work, int start, int token) {
  return start + token < min(work.range.end, start + C::kTileKv) ? pages.entry_of(start + token) : 0;
}

// Asks for tiles of K or of V, by one whole warp. kDim: elements of their rows. A stage that has become free should be asked for at
// once, so what to ask for is found before, and four boxes at a time: a read of shared memory between two requests is most of
// what a request takes.
template <class C, int kDim>
struct BoxLoader {
  using Shared = WgmmaShared<C>;
  static constexpr int kAhead = 4;
  const WgmmaPrefillParams& p;
  const TensorMap& map;
  int page_step;
  PageBox* boxes_at;  // in shared memory, so that the one lane that asks has no lane to wait for
  int boxes = 0, token = 0, head = 0;
  bool leader = false;
  PageBox front[kAhead] = {};

  __device__ __forceinline__ BoxLoader(const WgmmaPrefillParams& params, const TensorMap& map, int page_step, PageBox* boxes_at)
      : p(params), map(map), page_step(page_step), boxes_at(boxes_at) {}

  // `page` is the entry of this lane's box.
  __device__ __forceinline__ void prepare(const Pages<C>& pages, const Work& work, int start, int page) {
    const int own = threadIdx.x % 32 * p.box;  // where the box of this lane begins
    boxes = __popc(__ballot_sync(0xffffffffu, own < min(work.range.end - start, C::kTileKv)));
    if constexpr (Shared::kPaged) {
      const int group = pages.slot_of(start + own) >> 3;
      __syncwarp();  // the leader has read those of the tile before
      boxes_at[threadIdx.x % 32] = {group, pages.checked(page) * page_step + work.head};
      __syncwarp();
      read(front, 0);
    } else {
      token = pages.slot_of(start), head = work.head;
    }
    leader = elected();
  }
  __device__ __forceinline__ void ask(uint32_t dst, uint64_t& barrier) {
    const uint32_t full = smem_address(&barrier);
    if (leader) {
      mbarrier_arrive_expect(full, boxes * p.box * kDim * Shared::Tile::kElementBytes);
      if constexpr (Shared::kPaged) {
        const int step = (p.box >> 3) * Shared::kKvGroup;
#pragma unroll 1
        for (int box = 0; box < boxes; box += kAhead) {
          PageBox next[kAhead];
          read(next, box + kAhead);
#pragma unroll
          for (int i = 0; i < kAhead; ++i, dst += step)
            if (box + i < boxes) tma_load(dst, map, full, {{0, 0, 0, front[i].group, front[i].place}});
#pragma unroll
          for (int i = 0; i < kAhead; ++i) front[i] = next[i];
        }
      } else {
#pragma unroll
        for (int panel = 0; panel < kDim * Shared::Tile::kElementBytes / 128; ++panel)
          tma_load(dst + panel * Shared::kKvPanel, map, full, {{panel * 64, token, head, 0, 0}});
      }
    }
    __syncwarp();
  }

 private:
  // Of at most 16 boxes there are no more than 20 to be read.
  __device__ __forceinline__ void read(PageBox (&some)[kAhead], int first) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) some[i] = boxes_at[first + i];
  }
};

// Into a ring of tiles.
template <class C, int kCount, int kBytes>
__device__ __forceinline__ void load_values(const WgmmaPrefillParams& p, WgmmaShared<C>& smem,
                                            unsigned char (&tiles)[kCount][kBytes], uint64_t (&full)[kCount],
                                            uint64_t (&empty)[kCount]) {
  WorkQueue<C> queue(smem);
  Ring<kCount> ring;
  BoxLoader<C, C::kHeadDimVo> loader{p, p.v_map, p.v_page, smem.boxes[1]};
  for (;;) {
    const Work& work = queue.see();
    if (work.tile.rows == 0) break;
    const Pages<C> pages(p.base.table, work.tile.request);
    int left = work.tiles, start = work.last;
    const int token = threadIdx.x % 32 * p.box;  // of this lane's box
    int page = page_in_tile<C>(pages, work, start, token);
#pragma unroll 1
    for (; left > 0; --left, start -= C::kTileKv, ring.advance()) {
      const int next_page = left > 1 ? page_in_tile<C>(pages, work, start - C::kTileKv, token) : 0;
      loader.prepare(pages, work, start, page);
      mbarrier_wait(smem_address(&empty[ring.stage]), ring.parity ^ 1);
      __syncwarp();  // all have seen it: once the leader has asked, the barrier may go on by two phases
      loader.ask(smem_address(tiles[ring.stage]), full[ring.stage]);
      page = next_page;
    }
    queue.let_go();
  }
}

template <class C>
__device__ __forceinline__ uint32_t nonfinite_in(uint4 c) {
  using T = typename C::T;
  return nonfinite_halves<T>(c.x) | nonfinite_halves<T>(c.y) | nonfinite_halves<T>(c.z) | nonfinite_halves<T>(c.w);
}

// Tokens [begin, end) of a tile of V: those outside `inside` become zeros; of the others, is a value not finite?
template <class C>
__device__ __forceinline__ bool sweep(uint32_t v, int begin, int end, KvRange inside) {
  constexpr int kChunks = C::kHeadDimVo / 8;
  uint32_t found = 0;
  int own = threadIdx.x - (4 - kSweepers<C>) * 32;
  asm volatile("" : "+r"(own));  // nothing of it stays in registers where tiles are widened: masked tiles are few
#pragma unroll 2
  for (int i = begin * kChunks + own; i < end * kChunks; i += kSweepers<C> * 32) {
    const int token = i / kChunks;
    const uint32_t at = v + kv_place<C>(token, i % kChunks);
    if (token < inside.begin || token >= inside.end) {
      store_shared_16(at, make_uint4(0, 0, 0, 0));
    } else if constexpr (kReportsWild<C>) {
      found |= nonfinite_in<C>(load_shared_16(at));
    }
  }
  return found != 0;
}

// The same of a masked tile, for what not every row sees; tokens between the two are seen by all.
template <class C>
__device__ __forceinline__ bool sweep_masked(const Work& work, int start, uint32_t v) {
  const MaskedTiles masked = work.masked;
  const int below = min(max(masked.below - start, 0), C::kTileKv), above = max(masked.above + C::kTileKv - start, below);
  const KvRange inside{work.range.begin - start, work.range.end - start};
  bool found = sweep<C>(v, above, C::kTileKv, inside);
  if constexpr (C::kWindow || C::kSplit == SplitMode::kFixed) found |= sweep<C>(v, 0, below, inside);
  return found;
}

template <class C>
__device__ __forceinline__ void sweep_values(const WgmmaPrefillParams& p, WgmmaShared<C>& smem) {
  WorkQueue<C> queue(smem);
  WildWriter<C> wild{smem};
  Ring<C::kStages> ring;
  for (;;) {
    const Work& work = queue.see();
    if (work.tile.rows == 0) break;
    const MaskedTiles masked = work.masked;
    int start = work.last;
#pragma unroll 1
    for (int left = work.tiles; left > 0; --left, start -= C::kTileKv, ring.advance()) {
      mbarrier_wait(smem_address(&smem.v_full[ring.stage]), ring.parity);
      if (masked(start)) {
        const bool found = sweep_masked<C>(work, start, smem_address(smem.v[ring.stage]));
        fence_async_shared();
        wild.tell(ring.stage, found);
        warp_arrive(smem.swept[ring.stage]);
      }
      warp_arrive(smem.v_empty[ring.stage]);  // of every tile, or they could be late and wait for a phase that is gone
    }
    queue.let_go();
  }
}

}  // namespace opfacade
