// TMA loads: one warp issues each part of a stage, so that the boxes of small pages are issued in parallel. Pages are looked up
// one tile ahead. The file also contains the work schedule, which each of these warps computes for itself.
#pragma once
#include "kernels/mla/shared.cuh"

namespace opfacade {

// Prefetches the lengths, the first values that every CTA needs, one cache line per thread.
template <class C>
__device__ __forceinline__ void prefetch_lengths(const DecodeParams& p) {
  const int first = threadIdx.x * 32;  // the first entry of this thread's line
  if (first < p.batch) prefetch_l2(p.table.lens + first);
  if (C::kTable == TableForm::kCsr && first <= p.batch) prefetch_l2(p.table.indptr + first);
}

// The unit of this CTA, and its head block in it. The CTAs of a unit read the same tokens; as neighbours in the grid they run
// concurrently and share the tokens in L2.
template <class C>
__device__ __forceinline__ int unit_of_block() { return blockIdx.x / C::kHeadBlocks; }
template <class C>
__device__ __forceinline__ int head_of_block() { return blockIdx.x % C::kHeadBlocks; }

// Finds the items of this CTA (each warp for itself) and the split requests that the second launch merges.
template <class C>
struct MlaScheduler {
  const MlaParams& p;
  Schedule<C, C::kSplit> schedule;
  SplitRequest split{};

  __device__ __forceinline__ explicit MlaScheduler(const MlaParams& params) : p(params), schedule(params.base) {}

  __device__ __forceinline__ MlaWork next() {
    MlaWork work{};
    if constexpr (C::kSplit == SplitMode::kFixed) {
      if (!next_chunk(work)) return no_work();
    } else if (!schedule.next(work.item)) {
      if (C::kPartial) publish(split);
      return no_work();
    } else if constexpr (C::kPartial) {
      set_partials_of(work, split);
    }
    work.item.head = head_of_block<C>();  // the schedule has one head block
    // Tiles start at multiples of their size in every split mode, so that a page fills whole boxes.
    work.item.first_key = max(work.item.first_key, work.item.begin);
    if constexpr (C::kQueryRows > 1) leave_own_keys(work);
    work.item.begin = work.item.first_key / kMlaKeys * kMlaKeys;
    if (C::kQueryRows > 1 && work.item.first_key >= work.item.end) work.item.end = work.item.begin;
    return work;
  }

 private:
  // Restricts the keys to those that some query row of this head block attends to; the schedule has the keys of all query rows.
  __device__ __forceinline__ void leave_own_keys(MlaWork& work) const {
    constexpr int kHeads = C::kGroup / C::kQueryRows;
    const int kv_len = kv_length<C::kTable>(p.base.table, work.item.request), first = work.item.head * kMlaRows;
    work.first_row_end = kv_len - (C::kQueryRows - 1);
    const int last = min((first + kMlaRows - 1) / kHeads, C::kQueryRows - 1);
    if constexpr (C::kCausal) work.item.end = min(work.item.end, work.first_row_end + last);
    if constexpr (C::kWindow) work.item.first_key = max(work.item.first_key, kv_len - 1 - p.base.window_left + first / kHeads);
  }

  __device__ __forceinline__ static MlaWork no_work() {
    MlaWork work{};
    work.item.request = -1;
    return work;
  }

  __device__ __forceinline__ void publish(const SplitRequest& of) const {
    if (head_of_block<C>() == 0 && threadIdx.x == 0) p.split_requests[unit_of_block<C>()] = of;
  }

  // Moves the slots to the slots of this head block.
  __device__ __forceinline__ void set_partials_of(MlaWork& work, SplitRequest& of) {
    const Partials partials = schedule.partials_of(work.item);
    if (partials.index == 0 && partials.count > 1) of = {work.item.request, partials.count, partials.first_slot, partials.next_slot, partials.step};
    const int first = head_of_block<C>() * p.base.slots;
    work.partials = {partials.index, partials.count, partials.first_slot + first, partials.next_slot + first, partials.step};
  }

  // A CTA usually has one chunk. Its split request is published immediately, because no register is free to keep it. If this
  // CTA computes all partials of a request, it merges them itself.
  __device__ __forceinline__ bool next_chunk(MlaWork& work) {
    const bool first = !schedule.is_started(), more = schedule.next(work.item);
    SplitRequest of{};
    if (more) set_partials_of(work, of);
    work.owns_units = schedule.owns_units();
    if (work.owns_units) of.count = 0;
    if (first) publish(of);
    return more;
  }
};

// The boxes of one part of a stage, for the tiles of an item.
template <class C>
struct LatentLoader {
  const MlaParams& p;
  const TensorMap& map;
  int part;
  LatentBox* boxes_at;  // in shared memory, so that the issuing lane needs no shuffle
  RequestPages<C::kTable, C::kPow2Pages, C::kSafePages> pages;
  int first_key, end;
  int first = 0, last = 0;  // range of boxes of the current tile
  LatentBox front{};        // the first box of the current tile
  bool leader = false;

  __device__ __forceinline__ LatentLoader(const MlaParams& params, MlaShared& smem, int part, const WorkItem& item)
      : p(params), map(part == kRopePart ? params.kpe_map : params.ckv_map), part(part), boxes_at(smem.boxes[part]),
        pages(params.base.table, item.request), first_key(item.first_key), end(item.end) {}

  __device__ __forceinline__ int token_of_lane(int start) const { return start + threadIdx.x % 32 * p.box; }
  // The unchecked page table entry of this lane's box.
  __device__ __forceinline__ int entry_of_lane(int start) const {
    const int token = token_of_lane(start);
    return token + p.box > first_key && token < min(end, start + kMlaKeys) ? pages.entry_of(token) : 0;
  }
  // Finds the boxes of a tile before its stage is empty, so that they are issued at once.
  __device__ __forceinline__ void prepare(int start, int entry) {
    first = max(first_key - start, 0) / p.box, last = (min(end - start, kMlaKeys) + p.box - 1) / p.box;
    if (threadIdx.x % 32 < kMlaKeys / 8)
      boxes_at[threadIdx.x % 32] = {pages.slot_of(token_of_lane(start)) >> 3, pages.checked(entry)};
    __syncwarp();
    front = boxes_at[min(first, kMlaKeys / 8 - 1)];
    leader = elected();
  }
  // Issues the boxes that have a visible token; zero_invisible clears the rest of the tile.
  __device__ __forceinline__ void issue_loads(uint32_t dst, uint32_t full) const {
    const int bytes = p.box * panels_of(part) * 128;  // bytes of a box, and its size in the stage
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

// Issues the boxes of one part of a query tile. Query rows of the next request, or zeros past the last one, fill the tile.
template <class C>
__device__ __forceinline__ void issue_query_loads(const MlaParams& p, int part, const WorkItem& item, int tile, uint32_t dst,
                                                  uint32_t full) {
  const TensorMap& map = part == kRopePart ? p.q_pe_map : p.q_map;
  if (elected()) {
    mbarrier_arrive_expect(full, panels_of(part) * kMlaToQueryPanel);
#pragma unroll 1
    for (int panel = 0; panel < panels_of(part); ++panel) {
      const int head = item.head * kMlaRows + tile * kMlaKeys;
      if constexpr (C::kQueryRows == 1) {
        tma_load(dst + panel * kMlaToQueryPanel, map, full, {{panel * 64, head, item.request, 0, 0}});
      } else {
        constexpr int kHeads = C::kGroup / C::kQueryRows;
        constexpr QueryBox kBox = query_box(kHeads, C::kQueryRows);
        constexpr int kStep = kBox.heads == 0 ? kMlaKeys : kBox.heads * kBox.rows;
#pragma unroll 1
        for (int i = 0; i < kMlaKeys; i += kStep) {
          const int row = item.request * C::kQueryRows + (head + i) / kHeads;
          tma_load(dst + panel * kMlaToQueryPanel + i * 128, map, full, {{panel * 64, (head + i) % kHeads, row, 0, 0}});
        }
      }
    }
  }
  __syncwarp();
}

template <class C>
__device__ __forceinline__ void load_part(const MlaParams& p, MlaShared& smem, int part, const WorkItem& item, MlaRing& ring) {
  LatentLoader<C> loader(p, smem, part, item);
  int entry = loader.entry_of_lane(item.begin);
#pragma unroll 1
  for (int tile = -kMlaQueryTiles, start = item.begin; start < item.end; ++tile) {
    if (tile >= 0) {
      loader.prepare(start, entry);
      entry = loader.entry_of_lane(start + kMlaKeys);
    }
    ring.wait_empty_together(smem.empty);
    const uint32_t dst = smem.part(ring.stage, part), full = ring.at(smem.full);
    if (tile >= 0) {
      loader.issue_loads(dst, full);
      start += kMlaKeys;
    } else {
      issue_query_loads<C>(p, part, item, tile + kMlaQueryTiles, dst, full);
    }
    ring.advance();
  }
}

}  // namespace opfacade
