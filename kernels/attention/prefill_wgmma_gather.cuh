// Warpgroup 0 when the copy engine cannot load (pages that are no multiple of 8 tokens, addresses or strides off 16 bytes): its
// threads copy row by row, and a barrier hears of a copy when it is complete.
#pragma once
#include "kernels/attention/prefill_wgmma_load.cuh"

namespace opfacade {

template <class C>
struct Gatherer {
  using Shared = WgmmaShared<C>;
  static constexpr int kChunks = C::kHeadDim / 8;
  static constexpr int kStep = kWarpgroup / kChunks;  // rows apart that one thread copies

  const WgmmaPrefillParams& p;
  WgmmaShared<C>& smem;
  int parity = 0;  // of the table of rows

  // Copies so far will arrive at `full`.
  __device__ __forceinline__ void committed(uint64_t& full, bool aligned) const {
    if (aligned) {
      mbarrier_arrive_after_copies(smem_address(&full));
    } else {
      fence_async_shared();
      mbarrier_arrive(smem_address(&full));
    }
  }
  // A masked tile: each thread looks at what it has copied itself; what is outside the range it has written as zeros.
  __device__ __forceinline__ void report(int stage) const {
    cp_async_commit();
    cp_async_wait<0>();
    uint32_t found = 0;
#pragma unroll 2
    for (int row = threadIdx.x / kChunks; row < C::kTileKv; row += kStep)
      found |= nonfinite_in<C>(load_shared_16(smem_address(smem.v[stage]) + kv_place<C>(row, threadIdx.x % kChunks)));
    tell(stage, found != 0);
  }
  __device__ __forceinline__ void tell(int stage, bool found) const {
    const bool any = __any_sync(0xffffffffu, found);
    if (threadIdx.x % 32 == 0) smem.wild[stage][threadIdx.x / 32] = any;
    __syncwarp();
  }

  __device__ __forceinline__ const char* q_row(const Work& work, int row) const {
    const int packed = work.tile.first + row;
    return static_cast<const char*>(p.base.q) + (work.tile.q_start + packed / C::kGroup) * p.base.q_row_stride +
           (work.head * C::kGroup + packed % C::kGroup) * p.base.q_head_stride + threadIdx.x % kChunks * 16;
  }
  __device__ __forceinline__ void copy_q(const Work& work, int stage) const {
    const int chunk = threadIdx.x % kChunks;
    const uint32_t q = smem_address(smem.q[stage]) + chunk / 8 * Shared::kQPanel;
    if (p.base.q_aligned) {
#pragma unroll 1
      for (int row = threadIdx.x / kChunks; row < Shared::Tile::kRows; row += kStep)
        cp_async_16(q + panel_address(row, chunk % 8), q_row(work, row < work.tile.rows ? row : 0), row < work.tile.rows);
    } else {
#pragma unroll 1
      for (int row = threadIdx.x / kChunks; row < work.tile.rows; row += kStep)
        store_shared_16(q + panel_address(row, chunk % 8), load_elements(q_row(work, row), uint16_t{}));
    }
    committed(smem.q_full[stage], p.base.q_aligned);
  }

  __device__ __forceinline__ bool inside(const Work& work, int token) const {
    return threadIdx.x < C::kTileKv && token >= work.range.begin && token < work.range.end;
  }
  // Where the rows of a tile lie, one thread a token.
  __device__ __forceinline__ void resolve(const Pages<C>& pages, const Work& work, int start, int page) {
    parity ^= 1;
    const int token = start + threadIdx.x;
    if (inside(work, token)) {
      const int slot = pages.slot_of(token);
      smem.rows[parity][0][threadIdx.x] = token_address(p.base.k, page, slot, work.head);
      smem.rows[parity][1][threadIdx.x] = token_address(p.base.v, page, slot, work.head);
    }
    named_sync(kLoading, kWarpgroup);
  }

  __device__ __forceinline__ void copy_tile(const Work& work, int which, int start, unsigned char* dst) const {
    const int first = work.range.begin - start, last = work.range.end - start;
    const uint32_t base = smem_address(dst);
    const char* any = static_cast<const char*>(which == 0 ? p.base.k.data : p.base.v.data);
    const char* const* rows = smem.rows[parity][which];
    const int column = threadIdx.x % kChunks * 16;
    if (p.base.kv_aligned) {
#pragma unroll 2
      for (int row = threadIdx.x / kChunks; row < C::kTileKv; row += kStep) {
        const bool valid = row >= first && row < last;
        cp_async_16(base + kv_place<C>(row, threadIdx.x % kChunks), valid ? rows[row] + column : any, valid);
      }
    } else {
#pragma unroll 1
      for (int row = threadIdx.x / kChunks; row < C::kTileKv; row += kStep) {
        const bool valid = row >= first && row < last;
        fetch_chunk<uint16_t>(base + kv_place<C>(row, threadIdx.x % kChunks), valid ? rows[row] + column : any, valid, false);
      }
    }
  }

  // K and V of one tile, each as soon as its stage is free.
  __device__ __forceinline__ void copy(const Work& work, const Ring<C::kStages>& ring, int start) const {
    const int stage = ring.stage;
    mbarrier_wait(smem_address(&smem.k_empty[stage]), ring.parity ^ 1);
    copy_tile(work, 0, start, smem.k[stage]);
    committed(smem.k_full[stage], p.base.kv_aligned);
    mbarrier_wait(smem_address(&smem.v_empty[stage]), ring.parity ^ 1);
    copy_tile(work, 1, start, smem.v[stage]);
    const bool reports = (C::kCausal || C::kWindow || kHidesMore<C>) && MaskedTiles<C>(p.base, work)(start);
    if (reports) report(stage);
    committed(smem.v_full[stage], p.base.kv_aligned && !reports);
  }
};

}  // namespace opfacade
