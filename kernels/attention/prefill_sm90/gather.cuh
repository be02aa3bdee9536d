// Warpgroup 0 without TMA (page sizes that are not a multiple of 8 tokens, addresses or strides not aligned to 16 bytes): half
// of the threads copy K row by row, the other half V, so that neither half waits for a stage of the other. Tensor cores see the
// writes of a thread only after its own proxy fence, so a thread waits for its copies before it arrives; meanwhile it computes
// the addresses of the next rows.
#pragma once
#include "kernels/attention/prefill_sm90/tma_load.cuh"

namespace opfacade {

template <class C>
struct RowCopier {
  using Shared = WgmmaShared<C>;
  // Eight threads copy the chunks of each panel of a K or V row; a thread's rows are kStep apart.
  static constexpr int kChunks = 8, kStep = kCopiers<C> / kChunks;
  // rows that a thread copies at once, limited by registers
  static constexpr int kBatch = C::kHeadDim > 128 || C::kTileKv % (8 * kStep) != 0 ? 4 : 8;
  static constexpr int kLookups = (C::kTileKv + kCopiers<C> - 1) / kCopiers<C>;  // row lookups of each thread
  using Entries = int[kLookups];

  const WgmmaPrefillParams& p;
  WgmmaShared<C>& smem;
  NonfiniteReport<C> nonfinite{smem};
  uint32_t pending = 0;  // the barrier of the copies in flight

  // Waits for the pending copies and arrives on their barrier.
  __device__ __forceinline__ void publish_pending() {
    if (pending != 0) publish_writes(pending);
    pending = 0;
  }
  __device__ __forceinline__ void flush() {
    if (pending == 0) return;
    cp_async_wait<0>();
    publish_pending();
  }
  // Announces the writes since the last call on `full`. copied: cp.async wrote the data, so the arrival follows after the data
  // has arrived (publish_pending); otherwise ordinary stores wrote the data, and this thread arrives at once.
  __device__ __forceinline__ void committed(uint64_t& full, bool copied) {
    if (!copied) return publish_writes(smem_address(&full));
    cp_async_commit();
    cp_async_wait<1>();
    publish_pending();
    pending = smem_address(&full);
  }
  // Publishes the pending copies before it blocks, because the consumers may need them to release the stage that this thread
  // waits for.
  __device__ __forceinline__ void wait(const uint64_t& barrier, uint32_t parity) {
    if (!mbarrier_is_over(smem_address(&barrier), parity)) flush();
    mbarrier_wait(smem_address(&barrier), parity);
  }
  __device__ __forceinline__ static int chunk() { return threadIdx.x % kChunks; }
  __device__ __forceinline__ static int first_row() { return threadIdx.x % kCopiers<C> / kChunks; }

  // Masked tile of V: each thread checks the values that it copied; slots outside the range are zeros already.
  __device__ __forceinline__ void report(int stage) {
    flush();
    cp_async_commit();
    cp_async_wait<0>();
    uint32_t found = 0;
#pragma unroll 1
    for (int panel = 0; panel < C::kHeadDimVo / 64; ++panel) {
      const uint32_t at = smem_address(smem.v[stage]) + panel * Shared::kKvPanel + kv_place<C>(first_row(), chunk());
#pragma unroll 2
      for (int i = 0; i < C::kTileKv / kStep; ++i)
        found |= nonfinite_in<C>(load_shared_16(at + i * (kStep / 8) * Shared::kKvGroup));
    }
    nonfinite.publish(stage, found != 0);
  }

  // kQChunks threads copy one row of Q; it is the largest power of two that divides the number of 16-byte chunks of a row.
  static constexpr int kQChunks = C::kHeadDim / 8 & -(C::kHeadDim / 8), kQStep = kQueryCopiers<C> / kQChunks;

  __device__ __forceinline__ const char* q_row(const Work& work, int row, int chunk) const {
    const int packed = work.tile.first + row;
    return static_cast<const char*>(p.base.q) + (work.tile.q_start + packed / C::kGroup) * p.base.q_row_stride +
           (work.head * C::kGroup + packed % C::kGroup) * p.base.q_head_stride + chunk * 16;
  }
  __device__ __forceinline__ void copy_q(const Work& work, int stage) {
    const int copier = threadIdx.x - (kWarpgroup - kQueryCopiers<C>);
#pragma unroll 1
    for (int pass = 0; pass < C::kHeadDim / 8 / kQChunks; ++pass) {
      const int chunk = copier % kQChunks + pass * kQChunks;
      const uint32_t q = smem_address(smem.q[stage]) + chunk / 8 * Shared::kQPanel;
#pragma unroll 1
      for (int row = copier / kQChunks; row < Shared::Tile::kRows; row += kQStep) {
        const bool valid = row < work.tile.rows;
        fetch_chunk<uint16_t>(q + panel_address(row, chunk % 8), q_row(work, valid ? row : 0, chunk), valid, p.base.q_aligned);
      }
    }
    committed(smem.q_full[stage], p.base.q_aligned);
  }

  // A warp looks up the rows that it copies, so that it depends on no other warp.
  static __device__ __forceinline__ int own_row(int i) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % kCopiers<C> / 32;
    return lane / 4 * kStep + warp * 4 + lane % 4 + i * kCopiers<C>;
  }
  // Loads the page table entries of this thread's rows of a tile, one tile ahead. Rows past the range may have any entry.
  static __device__ __forceinline__ void look_up(const Pages<C>& pages, int start, int end, Entries& page) {
#pragma unroll
    for (int i = 0; i < kLookups; ++i)
      page[i] = pages.entry_of(min(start + own_row(i), end - 1));
  }
  // Writes smem.rows: byte offsets of the rows of a K or V tile from token 0 of page 0. Rows outside the range are never read.
  template <bool kValues>
  __device__ __forceinline__ void resolve(const Pages<C>& pages, int start, const Entries& page) {
    const PoolTensor& pool = kValues ? p.base.v : p.base.k;
    __syncwarp();  // the rows of the previous tile have been read
#pragma unroll
    for (int i = 0; i < kLookups; ++i) {
      if (own_row(i) >= C::kTileKv) break;
      // Both are non-negative: 64-bit products are cheaper if the upper half is known to be zero.
      const uint32_t id = pages.checked(page[i]), slot = pages.slot_of(start + own_row(i));
      const uint64_t lies = id * uint64_t(pool.page_stride) + slot * uint64_t(pool.token_stride);
      smem.rows[kValues][own_row(i) % kStep][own_row(i) / kStep] = lies;
    }
    __syncwarp();
  }

  // Copies rows of K or V; rows[i] is the byte offset of a row from `from`. Rows are copied in batches, because a copy that
  // waits for its address blocks the next copy. kWhole: all rows are inside the range; otherwise rows outside it become zeros,
  // with `any` as a valid address.
  template <bool kWhole>
  __device__ __forceinline__ void copy_rows(const uint64_t* rows, const char* from, uint32_t dst, int panels, const char* any,
                                            int begin, int end) const {
    static_assert(C::kTileKv % (kStep * kBatch) == 0, "whole batches");
#pragma unroll 1
    for (int row = first_row(); row < C::kTileKv; row += kStep * kBatch, rows += kBatch) {
      const char* src[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; i += 2) {
        const uint4 two = *reinterpret_cast<const uint4*>(rows + i);
        src[i] = from + (uint64_t{two.y} << 32 | two.x), src[i + 1] = from + (uint64_t{two.w} << 32 | two.z);
      }
#pragma unroll
      for (int panel = 0; panel < C::kHeadDim / 64; ++panel) {
        if (panel == panels) break;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const bool valid = kWhole || (row + i * kStep >= begin && row + i * kStep < end);
          cp_async_16(dst + panel * Shared::kKvPanel + i * (kStep / 8) * Shared::kKvGroup, valid ? src[i] + panel * 128 : any, valid);
        }
      }
      dst += kBatch * (kStep / 8) * Shared::kKvGroup;
    }
  }
  // The same copy, element by element.
  __device__ __forceinline__ void store_rows(const uint64_t* rows, const char* from, uint32_t dst, int panels, const char* any,
                                             int begin, int end) const {
#pragma unroll 1
    for (int row = first_row(); row < C::kTileKv; row += kStep, ++rows, dst += (kStep / 8) * Shared::kKvGroup) {
      const bool valid = row >= begin && row < end;
#pragma unroll 1
      for (int panel = 0; panel < panels; ++panel)
        fetch_chunk<uint16_t>(dst + panel * Shared::kKvPanel, valid ? from + *rows + panel * 128 : any, valid, false);
    }
  }
  __device__ __forceinline__ void copy_tile(const Work& work, int which, int start, const unsigned char* tile) const {
    const int begin = work.range.begin - start, end = work.range.end - start;
    const char* any = static_cast<const char*>(p.base.k.data);
    const uint64_t* rows = smem.rows[which][first_row()];
    const char* from = token_address(which == 0 ? p.base.k : p.base.v, 0, 0, work.head) + chunk() * 16;
    const int panels = (which == 0 ? C::kHeadDim : C::kHeadDimVo) / 64;
    const uint32_t dst = smem_address(tile) + kv_place<C>(first_row(), chunk());
    if (!p.base.kv_aligned) {
      store_rows(rows, from, dst, panels, any, begin, end);
    } else if (begin <= 0 && end >= C::kTileKv) {
      copy_rows<true>(rows, from, dst, panels, any, begin, end);
    } else {
      copy_rows<false>(rows, from, dst, panels, any, begin, end);
    }
  }

  // Copies K or V of one tile once its stage is empty. begins: the tile is the first of a work.
  template <bool kValues>
  __device__ __forceinline__ void copy(const Pages<C>& pages, const Work& work, const Ring<C::kStages>& ring, int start,
                                       const Entries& page, bool begins) {
    const int stage = ring.stage;
    const auto& empty = kValues ? smem.v_empty : smem.k_empty;
    resolve<kValues>(pages, start, page);
    if (begins) {
      wait(empty[stage], ring.parity ^ 1);
    } else {
      flush();  // does not wait long: the previous tile has arrived; the queries before the first tile of a work have not
      ring.wait_empty(empty);
    }
    copy_tile(work, kValues, start, kValues ? smem.v[stage] : smem.k[stage]);
    const bool reports = kReportsNonfinite<C> && kValues && work.masked(start);
    if (reports) report(stage);
    committed(kValues ? smem.v_full[stage] : smem.k_full[stage], p.base.kv_aligned && !reports);
  }
};

}  // namespace opfacade
