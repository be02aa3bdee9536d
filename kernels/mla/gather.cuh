// Loads without TMA (page sizes that are not a multiple of 8 tokens, or addresses or strides not aligned to 16 bytes): all
// threads of warpgroup 0 copy, 16 rows at a time. Invisible tokens become zeros.
#pragma once
#include "kernels/mla/load.cuh"

namespace opfacade {

template <class C>
struct LatentCopier {
  const MlaParams& p;
  MlaShared& smem;
  int parity = 0;  // the parity of the row address table

  static constexpr int kStep = kWarpgroup / 8, kCopies = kMlaKeys / kStep;  // rows per round; rounds per tile
  static constexpr int kInFlight = 2;
  static_assert(kInFlight <= kMlaQueryTiles && kInFlight < kMlaStages, "an item has so many tiles");

  // Copies token rows that are aligned to 16 bytes: all offsets are compile-time constants, so each of the 18 copies of a tile
  // is one instruction.
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
      cp_async_16(stage + part_offset(kRopePart) + group * 1024 + inside, rotated, there);
    }
  }

  // Copies rows of any alignment. part: 0 for the latent part, 1 for the rope part.
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

  // One thread resolves one row, and each half of the threads fills its own table. A null address means a row of zeros.
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
    return row < num_rows<C>(item) ? q + row_offset<C>(item, row, row_stride, head_stride) : nullptr;
  }

  using Pages = RequestPages<C::kTable, C::kPow2Pages, C::kSafePages>;

  __device__ __forceinline__ static bool is_visible(const WorkItem& item, int token) {
    return token >= item.first_key && token < item.end;
  }
  // The unchecked page table entry of this thread's row of a tile.
  __device__ __forceinline__ static int entry_of_row(const Pages& pages, const WorkItem& item, int start) {
    const int token = start + threadIdx.x % kMlaKeys;
    return is_visible(item, token) ? pages.entry_of(token) : 0;
  }

  __device__ __forceinline__ const char* token_row(const Pages& pages, const WorkItem& item, int part, int token, int entry) const {
    if (!is_visible(item, token)) return nullptr;
    return token_address(part == 0 ? p.base.k : p.base.v, pages.checked(entry), pages.slot_of(token), 0);
  }

  // Copies a tile into its stage once the stage is empty.
  __device__ __forceinline__ void copy_tile(bool queries, const MlaRing& at) const {
    const bool aligned = queries ? p.base.q_aligned && p.q_pe_aligned : p.base.kv_aligned;
    const uint32_t stage = smem_address(smem.kv[at.stage]);
    at.wait_empty(smem.empty);
    if (aligned && !queries) {
      copy_tokens(stage);
    } else {
      const int to_panel = queries ? kMlaToQueryPanel : kMlaToPanel;
      copy(0, stage, to_panel, queries ? 1024 : kMlaToGroup, aligned);
      copy(1, stage + part_offset(kRopePart), to_panel, 1024, aligned);
    }
    cp_async_commit();
  }
  // Publishes the next stage: its copies are complete and visible to the tensor cores.
  __device__ __forceinline__ void publish(MlaRing& published) const {
    publish_writes(published.at(smem.full));
    published.advance();
  }

  // Query tiles come first. Page table entries are read one tile ahead; a tile is published once kBehind later copies are in
  // flight. The rest are published at the end of the item, because the next one may have to wait for the consumers.
  __device__ __forceinline__ void load(const WorkItem& item, MlaRing& ring) {
    const Pages pages(p.base.table, item.request);
    int entry = entry_of_row(pages, item, item.begin);
    MlaRing published = ring;
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
      if (tile + kMlaQueryTiles >= kInFlight) {
        cp_async_wait<kInFlight>();
        publish(published);
      }
    }
    cp_async_wait<0>();
#pragma unroll 1
    while (published.stage != ring.stage) publish(published);
  }
};

// The role of warpgroup 0: it loads, and its last warp also publishes the work.
template <class C>
__device__ __forceinline__ void produce(const MlaParams& p, MlaShared& smem) {
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (p.mapped && threadIdx.x == 0) {
    prefetch_map(p.q_map), prefetch_map(p.q_pe_map);
    prefetch_map(p.ckv_map), prefetch_map(p.kpe_map);
  }
  MlaScheduler<C> scheduler(p);
  LatentCopier<C> gatherer{p, smem};
  MlaQueue queue(smem);
  MlaRing ring;
#pragma unroll 1
  for (;;) {
    const MlaWork work = scheduler.next();
    if (warp == kStageParts) {
      queue.publish(work);
      queue.advance();
    }
    if (work.item.request < 0) break;
    if (mla_tiles(work.item) == 0) continue;
    if (!p.mapped) {
      gatherer.load(work.item, ring);
    } else if (warp < kStageParts) {
      load_part<C>(p, smem, warp, work.item, ring);
    }
  }
}

}  // namespace opfacade
