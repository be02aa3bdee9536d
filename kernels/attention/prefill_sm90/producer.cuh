// Producer: finds work and loads it. One warp issues Q and K by TMA; without TMA, half the threads of warpgroup 0 copy, while
// the other half (kValues) copies V and half of Q. One loop for all, because the work search is most of the code, and a second
// copy costs compile time. The kValues threads read the published work, as the consumers do.
#pragma once
#include "kernels/attention/prefill_sm90/dequantise.cuh"

namespace opfacade {

template <class C, bool kValues>
struct Producer {
  const WgmmaPrefillParams& p;
  WgmmaShared<C>& smem;
  WorkQueue<C> queue, current;  // copies by threads if TMA does not load whole tiles; also loads raw tiles
  RawLoader<C> threads;  // copies by threads, if TMA does not load whole tiles; also loads raw tiles
  BoxLoader<C, C::kHeadDim> loader;
  Ring<C::kStages> ring{};
  Ring<WgmmaShared<C>::kQStages> q_ring{};

  __device__ __forceinline__ Producer(const WgmmaPrefillParams& params, WgmmaShared<C>& shared)
      : p(params), smem(shared), queue(smem), current(smem), threads{{p, smem}},
        loader{p, p.k_map, p.k_page, smem.boxes[0]} {}

  __device__ __forceinline__ bool mapped() const { return kFp8Products<C> || (!kValues && p.mapped); }
  // True if TMA loads whole tiles.
  __device__ __forceinline__ bool loads_by_tma() const { return kAsStored<C> && mapped(); }

  // Warp 0 publishes a work and reads it back. The published work stays valid until the consumers release it.
  __device__ __forceinline__ const Work* find() {
    threads.flush();  // the search takes longer than the copies of the first tile, for which the consumers may be waiting
    if (threadIdx.x < 32) {
      Scheduler<C> scheduler(p, smem.lengths, smem.pieces.line);
      scheduler.resume(smem.progress);
      const Work found = scheduler.next();
      scheduler.keep(smem.progress);
      if constexpr (kCutsByLengths<C>)
        if (threadIdx.x == 0) keep_part(smem.pieces.parts, found);
      queue.publish(found);
    }
    return peek();
  }
  __device__ __forceinline__ const Work* peek() {
    threads.wait(smem.work_full[queue.ring.stage], queue.ring.parity);
    const Work& work = queue.peek();
    queue.advance();
    return &work;
  }
  __device__ __forceinline__ void release() {
    if (!kValues && threadIdx.x < 32) current.advance(); else current.release();
  }

  __device__ __forceinline__ void load_queries(const Work& work) {
    if (!kAsStored<C> && !mapped()) return;  // the dequantising warps copy them
    threads.wait(smem.q_empty[q_ring.stage], q_ring.parity ^ 1);
    if (!mapped()) {
      threads.copy_q(work, q_ring.stage);
    } else if (elected()) {
      issue_query_loads<C>(p, smem, q_ring.stage, work);
    }
    __syncwarp();
    q_ring.advance();
  }

  using Entries = typename RowCopier<C>::Entries;
  // Loads this thread's page table entries one tile ahead: the entry of its box of a raw part, or the entries of its rows.
  __device__ __forceinline__ void look_up(const Pages<C>& pages, const Work& work, int start, Entries& page) const {
    if (mapped()) {
      const int token = threadIdx.x % 32 * p.box;
      page[0] = start + token < min(work.range.end, start + C::kTileKv) ? pages.entry_of(start + token) : 0;
    } else {
      RowCopier<C>::look_up(pages, start, work.range.end, page);
    }
  }
  // `page` contains the entries of the tile at `start`, and after the call those of the following tile.
  __device__ __forceinline__ void load_tile(const Work& work, const Pages<C>& pages, int start, Entries& page,
                                            bool begins) {
    if (loads_by_tma()) {
      loader.prepare(pages, work, start, page[0]);
      ring.wait_empty_together(smem.k_empty);
      loader.issue_loads(smem_address(smem.k[ring.stage]), smem.k_full[ring.stage]);
      return;
    }
    Entries next = {};
    look_up(pages, work, max(start - C::kTileKv, 0), next);
    if constexpr (!kAsStored<C>) {
      if (mapped()) threads.issue_loads(work, pages, start, page[0]); else threads.publish_rows(work, pages, start, page);
    } else if constexpr (!kFp8Products<C>) {
      threads.template copy<kValues>(pages, work, ring, start, page, begins);
    }
#pragma unroll
    for (int i = 0; i < RowCopier<C>::kLookups; ++i) page[i] = next[i];
  }

  // The search for the next work starts after the first tile of the current work has been issued, and overlaps its load.
  __device__ __forceinline__ void run() {
    if (!kValues && threadIdx.x < 32) {
      Scheduler<C> scheduler(p, smem.lengths, smem.pieces.line);
      scheduler.survey();
      scheduler.keep(smem.progress);
    }
    const Work *work = nullptr, *next = nullptr;
    Pages<C> pages(p.base.table, 0);
    int left = 0, start = 0;
    Entries page = {};
#pragma unroll 1
    for (bool begins = true;; --left, start -= C::kTileKv, ring.advance()) {
      if (!kValues && begins) next = find();
      begins = left == 0;
      if (begins) {
        if (work != nullptr) release();
        if (kValues) next = peek();
        if (next->tile.rows == 0) break;
        work = next;
        pages = Pages<C>(p.base.table, work->tile.request);
        left = work->tiles, start = work->last;
        if (loads_by_tma()) loader.begin(pages, *work, page[0]); else look_up(pages, *work, start, page);
        load_queries(*work);
      }
      load_tile(*work, pages, start, page, begins);
    }
    threads.flush();
  }
};

}  // namespace opfacade
