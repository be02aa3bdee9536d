// Finds work and loads it: Q and K by one warp that asks the copy engine, or by half the threads of warpgroup 0 that copy, while
// the other half (kValues) copies V and half of Q. One loop for all, because what finds work is most of its code, and every copy of
// it is time to compile. Those of kValues take work as those that compute do, when they come to it.
#pragma once
#include "kernels/attention/prefill_sm90/dequantise.cuh"

namespace opfacade {

template <class C, bool kValues>
struct Feeder {
  const WgmmaPrefillParams& p;
  WgmmaShared<C>& smem;
  WorkQueue<C> queue, held;  // the next work, and the one at hand
  RawLoader<C> threads;  // that copy, where the copy engine does not
  BoxLoader<C, C::kHeadDim> loader;
  Ring<C::kStages> ring{};
  Ring<WgmmaShared<C>::kQStages> q_ring{};

  __device__ __forceinline__ Feeder(const WgmmaPrefillParams& params, WgmmaShared<C>& shared)
      : p(params), smem(shared), queue(smem), held(smem), threads{{p, smem}},
        loader{p, p.k_map, p.k_page, smem.boxes[0]} {}

  __device__ __forceinline__ bool mapped() const { return kFp8Products<C> || (!kValues && p.mapped); }
  // For whole tiles.
  __device__ __forceinline__ bool asks() const { return kAsStored<C> && mapped(); }

  // Warp 0 publishes and reads what it has published, which lies there until those that compute have let it go.
  __device__ __forceinline__ const Work* find() {
    threads.settle();  // the search takes longer than the first tile, which those that compute may be waiting for
    if (threadIdx.x < 32) {
      Scheduler<C> scheduler(p, smem.lengths, smem.pieces.line);
      scheduler.resume(smem.progress);
      const Work found = scheduler.next();
      scheduler.keep(smem.progress);
      if constexpr (kCutsByLengths<C>)
        if (threadIdx.x == 0) keep_part(smem.pieces.parts, found);
      queue.publish(found);
    }
    return see();
  }
  __device__ __forceinline__ const Work* see() {
    threads.await(smem.work_full[queue.ring.stage], queue.ring.parity);
    const Work& work = queue.see();
    queue.pass();
    return &work;
  }
  __device__ __forceinline__ void let_go() {
    if (!kValues && threadIdx.x < 32) held.pass(); else held.let_go();
  }

  __device__ __forceinline__ void load_queries(const Work& work) {
    if (!kAsStored<C> && !mapped()) return;  // those that widen copy them
    threads.await(smem.q_empty[q_ring.stage], q_ring.parity ^ 1);
    if (!mapped()) {
      threads.copy_q(work, q_ring.stage);
    } else if (elected()) {
      ask_for_q<C>(p, smem, q_ring.stage, work);
    }
    __syncwarp();
    q_ring.advance();
  }

  using Entries = typename Gatherer<C>::Entries;
  // The entries of the page table that this thread looks up, a tile ahead: of its box of a piece to be widened, or of rows.
  __device__ __forceinline__ void look_up(const Pages<C>& pages, const Work& work, int start, Entries& page) const {
    if (mapped()) {
      const int token = threadIdx.x % 32 * p.box;
      page[0] = start + token < min(work.range.end, start + C::kTileKv) ? pages.entry_of(start + token) : 0;
    } else {
      Gatherer<C>::look_up(pages, start, work.range.end, page);
    }
  }
  // `page`: entries for the tile at `start`, then for the one after it.
  __device__ __forceinline__ void load_tile(const Work& work, const Pages<C>& pages, int start, Entries& page,
                                            bool begins) {
    if (asks()) {
      loader.prepare(pages, work, start, page[0]);
      mbarrier_wait(smem_address(&smem.k_empty[ring.stage]), ring.parity ^ 1);
      __syncwarp();
      loader.ask(smem_address(smem.k[ring.stage]), smem.k_full[ring.stage]);
      return;
    }
    Entries next = {};
    look_up(pages, work, max(start - C::kTileKv, 0), next);
    if constexpr (!kAsStored<C>) {
      if (mapped()) threads.ask(work, pages, start, page[0]); else threads.tell_rows(work, pages, start, page);
    } else if constexpr (!kFp8Products<C>) {
      threads.template copy<kValues>(pages, work, ring, start, page, begins);
    }
#pragma unroll
    for (int i = 0; i < Gatherer<C>::kLookups; ++i) page[i] = next[i];
  }

  // Work is found one ahead, when the first tile of the work at hand is under way.
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
        if (work != nullptr) let_go();
        if (kValues) next = see();
        if (next->tile.rows == 0) break;
        work = next;
        pages = Pages<C>(p.base.table, work->tile.request);
        left = work->tiles, start = work->last;
        if (asks()) loader.begin(pages, *work, page[0]); else look_up(pages, *work, start, page);
        load_queries(*work);
      }
      load_tile(*work, pages, start, page, begins);
    }
    threads.settle();
  }
};

}  // namespace opfacade
