// Loading by the copy engine: a warp for each piece of the tiles, so that asking for the boxes of small pages is shared. Pages are
// looked up one tile ahead. And the work of a block, which each of these warps finds on its own.
#pragma once
#include "kernels/mla/shared.cuh"

namespace opfacade {

// Lengths are the first that every block needs, one after the other, and memory is far.
template <class C>
__device__ __forceinline__ void prefetch_lengths(const DecodeParams& p) {
  const int first = threadIdx.x * 32;  // entries of a line
  if (first < p.batch) prefetch_l2(p.table.lens + first);
  if (C::kTable == TableForm::kCsr && first <= p.batch) prefetch_l2(p.table.indptr + first);
}

// Which unit this block belongs to, and which block of heads it has of it. Blocks of a unit read the same tokens and lie side by side:
// then they run at the same time, near each other, and share what they read in the L2.
template <class C>
__device__ __forceinline__ int unit_of_block() { return blockIdx.x / C::kHeadBlocks; }
template <class C>
__device__ __forceinline__ int head_of_block() { return blockIdx.x % C::kHeadBlocks; }

// Finds the items of this block, by each warp for itself, and what the second launch must merge.
template <class C>
struct MlaScheduler {
  const MlaParams& p;
  Schedule<C, C::kSplit> schedule;
  SplitRun run{};

  __device__ __forceinline__ explicit MlaScheduler(const MlaParams& params) : p(params), schedule(params.base) {}

  __device__ __forceinline__ MlaWork next() {
    MlaWork work{};
    if constexpr (C::kSplit == SplitMode::kFixed) {
      if (!next_chunk(work)) return no_work();
    } else if (!schedule.next(work.item)) {
      if (C::kPartial) tell(run);
      return no_work();
    } else if constexpr (C::kPartial) {
      set_parts(work, run);
    }
    work.item.head = head_of_block<C>();  // the schedule knows one head block
    // Tiles lie at multiples of their size whatever a fixed split begins with, so that pages lie in them in whole boxes.
    work.item.first_key = max(work.item.first_key, work.item.begin);
    work.item.begin = work.item.first_key / kMlaKeys * kMlaKeys;
    return work;
  }

 private:
  __device__ __forceinline__ static MlaWork no_work() {
    MlaWork work{};
    work.item.request = -1;
    return work;
  }

  __device__ __forceinline__ void tell(const SplitRun& of) const {
    if (head_of_block<C>() == 0 && threadIdx.x == 0) p.runs[unit_of_block<C>()] = of;
  }

  // In the slots of this block of heads.
  __device__ __forceinline__ void set_parts(MlaWork& work, SplitRun& of) {
    const Parts parts = schedule.parts_of(work.item);
    if (parts.part == 0 && parts.count > 1) of = {work.item.request, parts.count, parts.first_slot, parts.next_slot, parts.step};
    const int first = head_of_block<C>() * p.base.slots;
    work.parts = {parts.part, parts.count, parts.first_slot + first, parts.next_slot + first, parts.step};
  }

  // A block mostly has one: what that is part of is told at once, for there are no registers to keep it. Runs of which a block makes
  // all parts are merged by itself.
  __device__ __forceinline__ bool next_chunk(MlaWork& work) {
    const bool first = !schedule.has_begun(), more = schedule.next(work.item);
    SplitRun of{};
    if (more) set_parts(work, of);
    work.alone = schedule.alone();
    if (work.alone) of.count = 0;
    if (first) tell(of);
    return more;
  }
};

// The boxes of one piece of the tiles of an item.
template <class C>
struct LatentLoader {
  const MlaParams& p;
  const TensorMap& map;
  int piece;
  LatentBox* boxes_at;  // in shared memory, so that the one lane that asks has no lane to wait for
  RequestPages<C::kTable, C::kPow2Pages, C::kSafePages> pages;
  int first_key, end;
  int first = 0, last = 0;  // of the boxes of the tile at hand
  LatentBox front{};        // the first of them
  bool leader = false;

  __device__ __forceinline__ LatentLoader(const MlaParams& params, MlaShared& smem, int piece, const WorkItem& item)
      : p(params), map(piece == kRotated ? params.kpe_map : params.ckv_map), piece(piece), boxes_at(smem.boxes[piece]),
        pages(params.base.table, item.request), first_key(item.first_key), end(item.end) {}

  __device__ __forceinline__ int token_of_lane(int start) const { return start + threadIdx.x % 32 * p.box; }
  // The entry of this lane's box, not checked.
  __device__ __forceinline__ int entry_of_lane(int start) const {
    const int token = token_of_lane(start);
    return token + p.box > first_key && token < min(end, start + kMlaKeys) ? pages.entry_of(token) : 0;
  }
  // Which boxes to ask for, found before there is room: then they are asked for at once.
  __device__ __forceinline__ void prepare(int start, int entry) {
    first = max(first_key - start, 0) / p.box, last = (min(end - start, kMlaKeys) + p.box - 1) / p.box;
    if (threadIdx.x % 32 < kMlaKeys / 8)
      boxes_at[threadIdx.x % 32] = {pages.slot_of(token_of_lane(start)) >> 3, pages.checked(entry)};
    __syncwarp();
    front = boxes_at[min(first, kMlaKeys / 8 - 1)];
    leader = elected();
  }
  // Boxes without a visible token are not asked for: what lies there is swept.
  __device__ __forceinline__ void ask(uint32_t dst, uint32_t full) const {
    const int bytes = p.box * panels_of(piece) * 128;  // of a box, and what it takes in the stage
    if (leader) {
      mbarrier_arrive_expect(full, (last - first) * bytes);
#pragma unroll 1
      for (int box = first; box < last; ++box) {
        const LatentBox lies = box == first ? front : boxes_at[box];
        tma_load(dst + box * bytes, map, full, {{0, 0, 0, lies.group, lies.page}});
      }
    }
    __syncwarp();
  }
};

// The same piece of queries.
__device__ __forceinline__ void ask_queries(const MlaParams& p, int piece, const WorkItem& item, int tile, uint32_t dst,
                                            uint32_t full) {
  const TensorMap& map = piece == kRotated ? p.q_pe_map : p.q_map;
  if (elected()) {
    mbarrier_arrive_expect(full, panels_of(piece) * kMlaToQueryPanel);
#pragma unroll 1
    for (int panel = 0; panel < panels_of(piece); ++panel) {
      const int head = item.head * kMlaRows + tile * kMlaKeys;
      tma_load(dst + panel * kMlaToQueryPanel, map, full, {{panel * 64, head, item.request, 0, 0}});
    }
  }
  __syncwarp();
}

template <class C>
__device__ __forceinline__ void load_piece(const MlaParams& p, MlaShared& smem, int piece, const WorkItem& item, MlaRing& ring) {
  LatentLoader<C> loader(p, smem, piece, item);
  int entry = loader.entry_of_lane(item.begin);
#pragma unroll 1
  for (int tile = -kMlaQueryTiles, start = item.begin; start < item.end; ++tile) {
    if (tile >= 0) {
      loader.prepare(start, entry);
      entry = loader.entry_of_lane(start + kMlaKeys);
    }
    mbarrier_wait(smem_address(&smem.empty[ring.stage]), ring.parity ^ 1);
    __syncwarp();  // all have seen it: once the leader has asked, the barrier may go on by two phases
    const uint32_t dst = smem.piece(ring.stage, piece), full = smem_address(&smem.full[ring.stage]);
    if (tile >= 0) {
      loader.ask(dst, full);
      start += kMlaKeys;
    } else {
      ask_queries(p, piece, item, tile + kMlaQueryTiles, dst, full);
    }
    ring.advance();
  }
}

}  // namespace opfacade
