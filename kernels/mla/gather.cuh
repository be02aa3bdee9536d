// Loading when the copy engine cannot (pages that are no multiple of 8 tokens, addresses or strides off 16 bytes): all
// threads of warpgroup 0 copy, a panel of 64 rows at a time, and a barrier hears of a copy when it is complete. What is not
// visible becomes zeros.
#pragma once
#include "kernels/mla/load.cuh"

namespace opfacade {

template <class C>
struct LatentGatherer {
  const MlaParams& p;
  MlaShared& smem;
  int parity = 0;  // of the table of rows

  // Copies so far will arrive at `full`.
  __device__ __forceinline__ static void committed(uint64_t& full, bool aligned) {
    if (aligned) {
      mbarrier_arrive_after_copies(smem_address(&full));
    } else {
      fence_async_shared();
      mbarrier_arrive(smem_address(&full));
    }
  }

  // Panels of 64 rows, from `column` bytes on, one after the other. full: of a tile, one for each panel; of queries one. Where
  // its rows lie a thread reads once for all panels, unless it must copy element by element.
  __device__ __forceinline__ void copy(int pool, int column, int panels, uint32_t dst, uint64_t* full, bool each,
                                       bool aligned) const {
    constexpr int kStep = kWarpgroup / 8, kCopies = 64 / kStep;
    const int chunk = threadIdx.x % 8, first = threadIdx.x / 8;
    const char* const* rows = smem.rows[parity][pool] + first;
    column += chunk * 16, dst += panel_address(first, chunk);
    const char* src[kCopies];
    bool there[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      there[i] = rows[i * kStep] != nullptr;
      src[i] = there[i] ? rows[i * kStep] + column : static_cast<const char*>(p.base.k.data);
    }
#pragma unroll 1
    for (int panel = 0; panel < panels; ++panel, dst += 64 * 128, column += 128) {
      if (aligned) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          fetch_chunk<uint16_t>(dst + i * kStep * 128, src[i], there[i], true);
          src[i] += 128;
        }
      } else {
#pragma unroll 1
        for (int i = 0; i < kCopies; ++i) {
          const char* row = rows[i * kStep];
          fetch_chunk<uint16_t>(dst + i * kStep * 128, row + column, row != nullptr, false);
        }
      }
      if (each) committed(full[panel], aligned);
    }
    if (!each) committed(*full, aligned);
  }

  // One thread a row: either half of the threads has a table of its own. Null is a row of zeros.
  template <class Address>
  __device__ __forceinline__ void set_rows(Address address) {
    parity ^= 1;
    const int row = threadIdx.x % 64, pool = threadIdx.x / 64;
    smem.rows[parity][pool][row] = address(pool, row);
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
    const int token = start + threadIdx.x % 64;
    return is_visible(item, token) ? pages.entry_of(token) : 0;
  }

  __device__ __forceinline__ const char* token_row(const Pages& pages, const WorkItem& item, int pool, int token, int entry) const {
    if (!is_visible(item, token)) return nullptr;
    return token_address(pool == 0 ? p.base.k : p.base.v, pages.checked(entry), pages.slot_of(token), 0);
  }

  // A piece of a tile, or a part of the queries.
  __device__ __forceinline__ void load_piece(int piece, int stage, uint32_t stage_parity, bool queries) const {
    const bool rotated = queries ? piece == 1 : piece == kRotated;
    uint32_t dst;
    int column = 0, panels;
    uint64_t* full;
    bool aligned;
    if (queries) {
      dst = smem_address(smem.q) + piece * (kMlaLatent / 64 * kMlaQueryPanel), panels = rotated ? 1 : kMlaLatent / 64;
      full = &smem.q_full, aligned = p.base.q_aligned && p.q_pe_aligned;
    } else {
      mbarrier_wait(smem_address(&smem.empty[stage][piece]), stage_parity ^ 1);
      dst = smem.piece(stage, piece), column = piece == kRight ? kMlaLatent : 0, panels = panels_of(piece);
      full = &smem.full[stage][first_panel(piece)], aligned = p.base.kv_aligned;
    }
    copy(rotated, column, panels, dst, full, !queries, aligned);
  }

  // Queries come first, as a tile would. Entries of the page table are read a tile ahead.
  __device__ __forceinline__ void load(const WorkItem& item, MlaStagesRing& ring) {
    const Pages pages(p.base.table, item.request);
    int entry = entry_of_row(pages, item, item.begin);
    bool queries = true;
#pragma unroll 1
    for (int stage = 0, start = item.begin; start < item.end;) {
      set_rows([&](int pool, int row) {
        return queries ? query_row(item, pool, row) : token_row(pages, item, pool, start + row, entry);
      });
      if (!queries) entry = entry_of_row(pages, item, start + kMlaKeys);
#pragma unroll 1
      for (int piece = 0; piece < (queries ? 2 : kPieces); ++piece) load_piece(piece, stage, ring.parity(stage), queries);
      if (!queries) ring.pass(stage), stage ^= 1, start += kMlaKeys;
      queries = false;
    }
  }
};

// All that warpgroup 0 does: its last warp hands out the work and, with the copy engine, loads queries.
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
  MlaStagesRing ring;
  uint32_t q_parity = 0;
#pragma unroll 1
  for (;;) {
    const MlaWork work = scheduler.next();
    if (warp == kPieces) {
      queue.publish(work);
      queue.pass();
    }
    if (work.item.request < 0) break;
    if (mla_tiles(work.item) == 0) continue;
    if (p.mapped && warp < kPieces) {
      load_piece<C>(p, smem, warp, work.item, ring);
      continue;
    }
    mbarrier_wait(smem_address(&smem.q_empty), q_parity ^ 1);
    q_parity ^= 1;
    if (p.mapped) {
      load_queries<C>(p, smem, work.item);
    } else {
      gatherer.load(work.item, ring);
    }
  }
}

}  // namespace opfacade
