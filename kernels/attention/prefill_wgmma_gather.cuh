// Warpgroup 0 when the copy engine cannot load (pages that are no multiple of 8 tokens, addresses or strides off 16 bytes): its
// threads copy row by row. What threads write is seen by the tensor cores only after a fence of the thread that wrote it. So a
// thread waits for its copies before it tells a barrier, but only when those that follow are under way, or when it would
// have to wait for something else.
#pragma once
#include "kernels/attention/prefill_wgmma_load.cuh"

namespace opfacade {

// How the threads share rows of kDim elements: each copies a chunk of 16 bytes of rows that lie kStep apart. As many chunks as a
// power of two has are copied in a pass, the next ones of the row in the next pass.
template <int kDim, int kPass = 0>
struct RowCopy {
  static constexpr int kChunks = kDim / 8 & -(kDim / 8);
  static constexpr int kStep = kWarpgroup / kChunks;
  static constexpr bool kMore = (kPass + 1) * kChunks < kDim / 8;
  static constexpr int kFirst = kPass * kChunks;
  using Next = RowCopy<kDim, kPass + 1>;
};

template <class C>
struct Gatherer {
  using Shared = WgmmaShared<C>;
  using Key = RowCopy<C::kHeadDim>;
  using Value = RowCopy<C::kHeadDimVo>;
  static constexpr int kBatch = 4;

  const WgmmaPrefillParams& p;
  WgmmaShared<C>& smem;
  WildWriter<C> wild{smem};
  int parity = 0;  // of the table of rows

  uint32_t pending = 0;  // the barrier of copies under way

  // What this thread has written is for `full`.
  __device__ __forceinline__ static void tell_done(uint32_t full) {
    fence_async_shared();
    mbarrier_arrive(full);
  }
  // The copies that a barrier has not heard of are complete.
  __device__ __forceinline__ void tell_pending() {
    if (pending != 0) tell_done(pending);
    pending = 0;
  }
  __device__ __forceinline__ void settle() {
    if (pending == 0) return;
    cp_async_wait<0>();
    tell_pending();
  }
  // The copies since the last call are for `full`; copied: or threads have stored them themselves.
  __device__ __forceinline__ void committed(uint64_t& full, bool copied) {
    if (!copied) return tell_done(smem_address(&full));
    cp_async_commit();
    cp_async_wait<1>();
    tell_pending();
    pending = smem_address(&full);
  }
  __device__ __forceinline__ void await_empty(const uint64_t& empty, uint32_t parity) {
    if (!mbarrier_is_over(smem_address(&empty), parity)) settle();
    mbarrier_wait(smem_address(&empty), parity);
  }
  // A masked tile: each thread looks at what it has copied itself; what is outside the range it has written as zeros.
  __device__ __forceinline__ void report(int stage) {
    settle();
    cp_async_commit();
    cp_async_wait<0>();
    static_assert(!Value::kMore, "looks at all that this thread has copied");
    uint32_t found = 0;
#pragma unroll 2
    for (int row = threadIdx.x / Value::kChunks; row < C::kTileKv; row += Value::kStep)
      found |= nonfinite_in<C>(load_shared_16(smem_address(smem.v[stage]) + kv_place<C>(row, threadIdx.x % Value::kChunks)));
    wild.tell(stage, found != 0);
  }

  template <class Copy>
  __device__ __forceinline__ const char* q_row(const Work& work, int row) const {
    const int packed = work.tile.first + row;
    return static_cast<const char*>(p.base.q) + (work.tile.q_start + packed / C::kGroup) * p.base.q_row_stride +
           (work.head * C::kGroup + packed % C::kGroup) * p.base.q_head_stride + (threadIdx.x % Copy::kChunks + Copy::kFirst) * 16;
  }
  template <class Copy = Key>
  __device__ __forceinline__ void copy_q(const Work& work, int stage) {
    const int chunk = threadIdx.x % Copy::kChunks + Copy::kFirst;
    const uint32_t q = smem_address(smem.q[stage]) + chunk / 8 * Shared::kQPanel;
    if (p.base.q_aligned) {
#pragma unroll 1
      for (int row = threadIdx.x / Copy::kChunks; row < Shared::Tile::kRows; row += Copy::kStep)
        cp_async_16(q + panel_address(row, chunk % 8), q_row<Copy>(work, row < work.tile.rows ? row : 0), row < work.tile.rows);
    } else {
#pragma unroll 1
      for (int row = threadIdx.x / Copy::kChunks; row < work.tile.rows; row += Copy::kStep)
        store_shared_16(q + panel_address(row, chunk % 8), load_elements(q_row<Copy>(work, row), uint16_t{}));
    }
    if constexpr (Copy::kMore) return copy_q<typename Copy::Next>(work, stage);
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
      page = pages.checked(page);
      smem.rows[parity][0][threadIdx.x] = token_address(p.base.k, page, slot, work.head);
      smem.rows[parity][1][threadIdx.x] = token_address(p.base.v, page, slot, work.head);
    }
    named_sync(kLoading, kWarpgroup);
  }

  // The rows of a tile that this thread copies: kStep apart, and so their places.
  template <class Copy>
  __device__ __forceinline__ static uint32_t place_of(uint32_t base, int i) {
    constexpr int kStep = Copy::kStep;
    const int first = threadIdx.x / Copy::kChunks, chunk = threadIdx.x % Copy::kChunks + Copy::kFirst;
    if constexpr (kStep % 8 == 0) return base + kv_place<C>(first, chunk) + i * (kStep / 8) * Shared::kKvGroup;
    return base + kv_place<C>(first + i * kStep, chunk);
  }
  // Some at a time, because a copy that waits for its address holds up the next. kWhole: all are inside the range.
  template <class Copy, bool kWhole>
  __device__ __forceinline__ void copy_rows(const char* const* rows, uint32_t base, const char* any, int begin, int end) const {
    constexpr int kStep = Copy::kStep;
    static_assert(C::kTileKv % (kStep * kBatch) == 0, "whole batches");
    const int first = threadIdx.x / Copy::kChunks, column = (threadIdx.x % Copy::kChunks + Copy::kFirst) * 16;
#pragma unroll 1
    for (int done = 0; done < C::kTileKv / kStep; done += kBatch, rows += kStep * kBatch) {
      const char* src[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) src[i] = rows[first + i * kStep];
      const uint32_t at = place_of<Copy>(base, done);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int row = first + (done + i) * kStep;
        const bool valid = kWhole || (row >= begin && row < end);
        cp_async_16(kStep % 8 == 0 ? at + place_of<Copy>(0, i) - place_of<Copy>(0, 0) : place_of<Copy>(base, done + i),
                    valid ? src[i] + column : any, valid);
      }
    }
  }
  template <class Copy>
  __device__ __forceinline__ void copy_tile(const Work& work, int which, int start, unsigned char* dst) const {
    const int begin = work.range.begin - start, end = work.range.end - start;
    const uint32_t base = smem_address(dst);
    const char* any = static_cast<const char*>(which == 0 ? p.base.k.data : p.base.v.data);
    const char* const* rows = smem.rows[parity][which];
    if (!p.base.kv_aligned) {
      const int chunk = threadIdx.x % Copy::kChunks + Copy::kFirst;
#pragma unroll 1
      for (int row = threadIdx.x / Copy::kChunks; row < C::kTileKv; row += Copy::kStep) {
        const bool valid = row >= begin && row < end;
        fetch_chunk<uint16_t>(base + kv_place<C>(row, chunk), valid ? rows[row] + chunk * 16 : any, valid, false);
      }
    } else if (begin <= 0 && end >= C::kTileKv) {
      copy_rows<Copy, true>(rows, base, any, begin, end);
    } else {
      copy_rows<Copy, false>(rows, base, any, begin, end);
    }
    if constexpr (Copy::kMore) copy_tile<typename Copy::Next>(work, which, start, dst);
  }

  // K and V of one tile, each as soon as its stage is free.
  __device__ __forceinline__ void copy(const Work& work, const Ring<C::kStages>& ring, int start) {
    const int stage = ring.stage;
    await_empty(smem.k_empty[stage], ring.parity ^ 1);
    copy_tile<Key>(work, 0, start, smem.k[stage]);
    committed(smem.k_full[stage], p.base.kv_aligned);
    await_empty(smem.v_empty[stage], ring.parity ^ 1);
    copy_tile<Value>(work, 1, start, smem.v[stage]);
    const bool reports = kReportsWild<C> && MaskedTiles<C>(p.base, work)(start);
    if (reports) report(stage);
    committed(smem.v_full[stage], p.base.kv_aligned && !reports);
  }
};

}  // namespace opfacade
