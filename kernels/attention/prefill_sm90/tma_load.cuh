// Warpgroup 0 with TMA: one warp finds work and issues Q and K (prefill_sm90/producer.cuh), one issues V, and two check the
// masked tiles of V. In masked tiles, slots outside the range become zeros, because 0 * NaN is NaN; non-finite values inside
// the range are only reported, see prefill_sm90/nonfinite.cuh.
#pragma once
#include "kernels/attention/prefill_sm90/shared_storage.cuh"
#include "kernels/common/chunk.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void issue_query_loads(const WgmmaPrefillParams& p, WgmmaShared<C>& smem, int stage, const Work& work) {
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

// One full warp issues the tiles of K or V. kDim: the number of elements per row. A stage should be refilled as soon as it is
// empty, and each instruction of this warp delays the consumers on the same SM. Therefore each lane finds a box, for several
// tiles at once; page table entries are read equally many tiles ahead; and boxes are read from shared memory four at a time,
// the first four before the stage is empty.
template <class C, int kDim>
struct BoxLoader {
  using Shared = WgmmaShared<C>;
  static constexpr int kAhead = 4, kTileBytes = C::kTileKv * kDim * Shared::Tile::kElementBytes;
  static_assert(C::kTileKv <= kBoxSpan);
  // fp8 products leave no registers for state across tiles, so boxes are found for one tile at a time.
  static constexpr bool kSeveral = !kFp8Products<C>;
  const WgmmaPrefillParams& p;
  const TensorMap& map;
  int page_step;
  PageBox* found;         // in shared memory, so that the issuing lane needs no shuffle
  PageBox* at = nullptr;  // boxes of the current tile
  int boxes = 0;          // number of boxes of the current tile
  int token = 0, head = 0;
  PageBox front[kAhead] = {};

  __device__ __forceinline__ BoxLoader(const WgmmaPrefillParams& params, const TensorMap& map, int page_step, PageBox* found)
      : p(params), map(map), page_step(page_step), found(found) {}

  // Must be called once for each work. `entry` is the page table entry of this lane's box of the next tiles, whose boxes are
  // not yet in `found`.
  __device__ __forceinline__ void begin(const Pages<C>& pages, const Work& work, int& entry) {
    if constexpr (Shared::kPaged) {
      count(work, work.last);
      entry = look_up(pages, work, work.last + offset());
      at = found + (kSeveral ? 32 : 0);
    }
  }
  // Prepares the next tile of the work, which starts at `start`.
  __device__ __forceinline__ void prepare(const Pages<C>& pages, const Work& work, int start, int& entry) {
    if constexpr (Shared::kPaged) {
      if constexpr (!kSeveral) count(work, start);
      if (!kSeveral || at == found + 32) find(pages, work, start + offset(), entry);
      read(front, kSeveral ? at : found);
    } else {
      token = pages.slot_of(start), head = work.head;
    }
  }
  __device__ __forceinline__ void issue_loads(uint32_t dst, uint64_t& barrier) {
    const uint32_t full = smem_address(&barrier);
    if (elected()) {
      mbarrier_arrive_expect(full, Shared::kPaged ? boxes * p.box * kDim * Shared::Tile::kElementBytes : kTileBytes);
      if constexpr (Shared::kPaged) {
        issue_boxes(dst, full);
      } else {
#pragma unroll
        for (int panel = 0; panel < kDim * Shared::Tile::kElementBytes / 128; ++panel)
          tma_load(dst + panel * Shared::kKvPanel, map, full, {{panel * 64, token, head, 0, 0}});
      }
    }
    __syncwarp();
    if constexpr (Shared::kPaged && kSeveral) at += p.box_lanes, boxes = p.box_lanes * C::kTileKv / kBoxSpan;
  }

 private:
  __device__ __forceinline__ void count(const Work& work, int start) {
    const int own = threadIdx.x % 32 * p.box;
    boxes = __popc(__ballot_sync(0xffffffffu, own < min(work.range.end - start, C::kTileKv)));
  }
  // The first token of this lane's box, relative to the current tile: the first lanes find boxes of this tile, the next lanes
  // boxes of the tile before it in memory, which is issued next.
  __device__ __forceinline__ int offset() const {
    const int spans = threadIdx.x % 32 * p.box;
    return kSeveral ? spans % kBoxSpan - spans / kBoxSpan * C::kTileKv : spans;
  }
  __device__ __forceinline__ static int look_up(const Pages<C>& pages, const Work& work, int own) {
    return static_cast<unsigned>(own) < static_cast<unsigned>(work.range.end) ? pages.entry_of(own) : 0;
  }
  __device__ __forceinline__ void find(const Pages<C>& pages, const Work& work, int own, int& entry) {
    if constexpr (kSeveral) at = found;
    __syncwarp();  // the issuing lane has read the previous boxes
    found[threadIdx.x % 32] = {pages.slot_of(own) >> 3, pages.checked(entry) * page_step + work.head};
    __syncwarp();
    entry = look_up(pages, work, own - (kSeveral ? 32 * p.box / kBoxSpan : 1) * C::kTileKv);
  }
  __device__ __forceinline__ static void read(PageBox (&some)[kAhead], const PageBox* from) {
#pragma unroll
    for (int i = 0; i < kAhead; i += 2) {
      const uint4 two = *reinterpret_cast<const uint4*>(from + i);
      some[i] = {static_cast<int>(two.x), static_cast<int>(two.y)};
      some[i + 1] = {static_cast<int>(two.z), static_cast<int>(two.w)};
    }
  }
  // Branch-free except for the last three boxes.
  __device__ __forceinline__ void issue_boxes(uint32_t dst, uint32_t full) {
    const int step = (p.box >> 3) * Shared::kKvGroup;
    const PageBox* next_at = (kSeveral ? at : found) + kAhead;
    int left = boxes;
#pragma unroll 1
    for (; left >= kAhead; left -= kAhead, next_at += kAhead, dst += kAhead * step) {
      PageBox next[kAhead] = {};
      if (left > kAhead) read(next, next_at);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) issue_box(dst + i * step, full, front[i]);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) front[i] = next[i];
    }
#pragma unroll
    for (int i = 0; i < kAhead - 1; ++i)
      if (i < left) issue_box(dst + i * step, full, front[i]);
  }
  __device__ __forceinline__ void issue_box(uint32_t dst, uint32_t full, const PageBox& box) const {
    tma_load(dst, map, full, {{0, 0, 0, box.group, box.place}});
  }
};

// Issues all tiles of the work into a ring.
template <class C, int kCount, int kBytes>
__device__ __forceinline__ void load_values(const WgmmaPrefillParams& p, WgmmaShared<C>& smem,
                                            unsigned char (&tiles)[kCount][kBytes], uint64_t (&full)[kCount],
                                            uint64_t (&empty)[kCount]) {
  WorkQueue<C> queue(smem);
  Ring<kCount> ring;
  BoxLoader<C, C::kHeadDimVo> loader{p, p.v_map, p.v_page, smem.boxes[1]};
  for (;;) {
    const Work& work = queue.peek();
    if (work.tile.rows == 0) break;
    const Pages<C> pages(p.base.table, work.tile.request);
    int left = work.tiles, start = work.last;
    int entry = 0;
    loader.begin(pages, work, entry);
#pragma unroll 1
    for (; left > 0; --left, start -= C::kTileKv, ring.advance()) {
      loader.prepare(pages, work, start, entry);
      ring.wait_empty_together(empty);
      loader.issue_loads(smem_address(tiles[ring.stage]), full[ring.stage]);
    }
    queue.release();
  }
}

template <class C>
__device__ __forceinline__ uint32_t nonfinite_in(uint4 c) {
  using T = typename C::T;
  return nonfinite_halves<T>(c.x) | nonfinite_halves<T>(c.y) | nonfinite_halves<T>(c.z) | nonfinite_halves<T>(c.w);
}

// Sets the tokens of [begin, end) outside `inside` to zero in a tile of V. Returns true if another value is not finite.
template <class C>
__device__ __forceinline__ bool check(uint32_t v, int begin, int end, KvRange inside) {
  constexpr int kChunks = C::kHeadDimVo / 8, kThreads = kTileWarps<C> * 32;
  uint32_t found = 0;
  int own = threadIdx.x - (4 - kTileWarps<C>) * 32;
  asm volatile("" : "+r"(own));  // keeps addresses out of the registers of the dequantising loop, because masked tiles are few
  // Each thread has the same addresses in every tile: otherwise compute-sanitizer's racecheck, which ignores v_empty, reports
  // a race between two tiles.
#pragma unroll 2
  for (int i = begin * kChunks / kThreads * kThreads + own; i < end * kChunks; i += kThreads) {
    const int token = i / kChunks;
    if (token < begin) continue;
    const uint32_t at = v + kv_place<C>(token, i % kChunks);
    if (token < inside.begin || token >= inside.end) {
      store_shared_16(at, make_uint4(0, 0, 0, 0));
    } else if constexpr (kReportsNonfinite<C>) {
      found |= nonfinite_in<C>(load_shared_16(at));
    }
  }
  return found != 0;
}

// The same for a masked tile, but only for tokens that are invisible to some row; the tokens between them are visible to all
// rows.
template <class C>
__device__ __forceinline__ bool check_masked(const Work& work, int start, uint32_t v) {
  const MaskedTiles masked = work.masked;
  const int below = min(max(masked.below - start, 0), C::kTileKv), above = max(masked.above + C::kTileKv - start, below);
  const KvRange inside{work.range.begin - start, work.range.end - start};
  bool found = check<C>(v, above, C::kTileKv, inside);
  if constexpr (C::kWindow || C::kSplit == SplitMode::kFixed) found |= check<C>(v, 0, below, inside);
  return found;
}

template <class C>
__device__ __forceinline__ void check_values(const WgmmaPrefillParams& p, WgmmaShared<C>& smem) {
  WorkQueue<C> queue(smem);
  NonfiniteReport<C> nonfinite{smem};
  Ring<C::kStages> ring;
  for (;;) {
    const Work& work = queue.peek();
    if (work.tile.rows == 0) break;
    const MaskedTiles masked = work.masked;
    int start = work.last;
#pragma unroll 1
    for (int left = work.tiles; left > 0; --left, start -= C::kTileKv, ring.advance()) {
      ring.wait_full(smem.v_full);
      if (masked(start)) {
        const bool found = check_masked<C>(work, start, smem_address(smem.v[ring.stage]));
        fence_async_shared();
        nonfinite.publish(ring.stage, found);
        warp_arrive(smem.v_checked[ring.stage]);
      }
      warp_arrive(smem.v_empty[ring.stage]);  // for every tile; otherwise the warp could wait for a phase that has passed
    }
    queue.release();
  }
}

}  // namespace opfacade
