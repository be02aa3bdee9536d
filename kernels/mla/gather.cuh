// Loading when the copy engine cannot (pages that are no multiple of 8 tokens, addresses or strides off 16 bytes): all
// threads of warpgroup 0 copy, 16 rows at a time. What is not visible becomes zeros.
#pragma once
#include "kernels/mla/load.cuh"

namespace opfacade {

template <class C>
struct LatentGatherer {
  const MlaParams& p;
  MlaShared& smem;
  int parity = 0;  // of the table of rows

  static constexpr int kStep = kWarpgroup / 8, kCopies = kMlaKeys / kStep;  // rows at once, and how often
  static constexpr int kBehind = 2;
  static_assert(kBehind <= kMlaQueryTiles && kBehind < kMlaStages, "an item has so many tiles");

  // Rows of tokens, as they are everywhere but in front of an odd address: with each place known when the code is made, a copy is one
  // instruction, and there are 18 of them in a tile.
  __device__ __forceinline__ void copy_tokens(uint32_t stage) const {
    const int chunk = threadIdx.x % 8, first = threadIdx.x / 8;
    const uint32_t inside = panel_address(first % 8, chunk);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = first + i * kStep, group = row / 8;
      const char* latent = smem.rows[parity][0][row];
      const char* rotated = smem.rows[parity][1][row];
      const bool there = latent != nullptr;
      latent = there ? latent + chunk * 16 : static_cast<const char*>(p.base.k.data);
      rotated = there ? rotated + chunk * 16 : static_cast<const char*>(p.base.k.data);
#pragma unroll
      for (int panel = 0; panel < kMlaLatent / 64; ++panel) {
        cp_async_16(stage + group * kMlaToGroup + inside + panel * kMlaToPanel, latent + panel * 128, there);
      }
      cp_async_16(stage + piece_at(kRotated) + group * 1024 + inside, rotated, there);
    }
  }

  // Any rows: a part of them, the latent or what is rotated.
  __device__ __forceinline__ void copy(int part, uint32_t dst, int to_panel, int to_group, bool aligned) const {
    const int chunk = threadIdx.x % 8, first = threadIdx.x / 8;
    dst += first / 8 * to_group + panel_address(first % 8, chunk);
#pragma unroll 1
    for (int panel = 0; panel < (part == 0 ? kMlaLatent / 64 : 1); ++panel, dst += to_panel) {
#pragma unroll 1
      for (int i = 0; i < kCopies; ++i) {
        const char* row = smem.rows[parity][part][first + i * kStep];
        const bool there = row != nullptr;
        row = there ? row + panel * 128 + chunk * 16 : static_cast<const char*>(p.base.k.data);
        fetch_chunk<uint16_t>(dst + i * (kStep / 8) * to_group, row, there, aligned);
      }
    }
  }

  // One thread a row: either half of them has a table of its own. Null is a row of zeros.
  template <class Address>
  __device__ __forceinline__ void set_rows(Address address) {
    parity ^= 1;
    const int row = threadIdx.x % kMlaKeys, part = threadIdx.x / kMlaKeys;
    if (part < 2) smem.rows[parity][part][row] = address(part, row);
    named_sync(kMlaLoading, kWarpgroup);
  }

  __device__ __forceinline__ const char* query_row(const WorkItem& item, int part, int row) const {
    const DecodeParams& d = p.base;
    const char* q = static_cast<const char*>(part == 0 ? d.q : p.q_pe);
    const int64_t row_stride = part == 0 ? d.q_row_stride : p.q_pe_row_stride;
    const int64_t head_stride = part == 0 ? d.q_head_stride : p.q_pe_head_stride;
    return row < num_rows<C>(item) ? q + item.request * row_stride + query_head<C>(item, row) * head_stride : nullptr;
  }

  using Pages = RequestPages<C::kTable, C::kPow2Pages, C::kSafePages>;

  __device__ __forceinline__ static bool is_visible(const WorkItem& item, int token) {
    return token >= item.first_key && token < item.end;
  }
  // The entry of this thread's row of a tile, not checked.
  __device__ __forceinline__ static int entry_of_row(const Pages& pages, const WorkItem& item, int start) {
    const int token = start + threadIdx.x % kMlaKeys;
    return is_visible(item, token) ? pages.entry_of(token) : 0;
  }

  __device__ __forceinline__ const char* token_row(const Pages& pages, const WorkItem& item, int part, int token, int entry) const {
    if (!is_visible(item, token)) return nullptr;
    return token_address(part == 0 ? p.base.k : p.base.v, pages.checked(entry), pages.slot_of(token), 0);
  }

  // Into a stage, when there is room.
  __device__ __forceinline__ void copy_tile(bool queries, const MlaRing& at) const {
    const bool aligned = queries ? p.base.q_aligned && p.q_pe_aligned : p.base.kv_aligned;
    const uint32_t stage = smem_address(smem.kv[at.stage]);
    mbarrier_wait(smem_address(&smem.empty[at.stage]), at.parity ^ 1);
    if (aligned && !queries) {
      copy_tokens(stage);
    } else {
      const int to_panel = queries ? kMlaToQueryPanel : kMlaToPanel;
      copy(0, stage, to_panel, queries ? 1024 : kMlaToGroup, aligned);
      copy(1, stage + piece_at(kRotated), to_panel, 1024, aligned);
    }
    cp_async_commit();
  }
  // The next stage is told of: its copies are complete, and seen by the tensor cores.
  __device__ __forceinline__ void tell(MlaRing& told) const {
    fence_async_shared();
    mbarrier_arrive(smem_address(&smem.full[told.stage]));
    told.advance();
  }

  // Queries come first, as tiles would. Entries of the page table are read a tile ahead, and a tile is told of when kBehind more are under
  // way. Those that are left are told of at the end of an item, because the next may have to wait for those that compute.
  __device__ __forceinline__ void load(const WorkItem& item, MlaRing& ring) {
    const Pages pages(p.base.table, item.request);
    int entry = entry_of_row(pages, item, item.begin);
    MlaRing told = ring;
#pragma unroll 1
    for (int tile = -kMlaQueryTiles, start = item.begin; start < item.end; ++tile) {
      const bool queries = tile < 0;
      set_rows([&](int part, int row) {
        return queries ? query_row(item, part, (tile + kMlaQueryTiles) * kMlaKeys + row)
                       : token_row(pages, item, part, start + row, entry);
      });
      if (!queries) {
        start += kMlaKeys;
        entry = entry_of_row(pages, item, start);
      }
      copy_tile(queries, ring);
      ring.advance();
      if (tile + kMlaQueryTiles >= kBehind) {
        cp_async_wait<kBehind>();
        tell(told);
      }
    }
    cp_async_wait<0>();
#pragma unroll 1
    while (told.stage != ring.stage) tell(told);
  }
};

// All that warpgroup 0 does: its last warp hands out the work.
template <class C>
__device__ __forceinline__ void produce(const MlaParams& p, MlaShared& smem) {
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (p.mapped && threadIdx.x == 0) {
    prefetch_map(p.q_map), prefetch_map(p.q_pe_map);
    prefetch_map(p.ckv_map), prefetch_map(p.kpe_map);
  }
  MlaScheduler<C> scheduler(p);
  LatentGatherer<C> gatherer{p, smem};
  MlaQueue queue(smem);
  MlaRing ring;
#pragma unroll 1
  for (;;) {
    const MlaWork work = scheduler.next();
    if (warp == kPieces) {
      queue.publish(work);
      queue.pass();
    }
    if (work.item.request < 0) break;
    if (mla_tiles(work.item) == 0) continue;
    if (!p.mapped) {
      gatherer.load(work.item, ring);
    } else if (warp < kPieces) {
      load_piece<C>(p, smem, warp, work.item, ring);
    }
  }
}

}  // namespace opfacade
