// Dequantisation of an fp8 cache: raw parts of tiles arrive in a ring, and warps 1 to 3 convert them to f16, exactly, into
// operand tiles. Warp 0 issues the loads by TMA; without TMA it publishes row addresses, and each thread copies the bytes that
// it converts. The conversion limits the throughput of the CTA, so the converting warps read no page table.
#pragma once
#include "kernels/attention/prefill_sm90/gather.cuh"
#include "kernels/ptx/fp8.cuh"

namespace opfacade {

template <class C>
struct RawTile {
  static constexpr int kRows = C::Tile::kRawRows;
  static constexpr int kParts = C::kTileKv / kRows;  // parts of a tile of K or of V
  // In one step, a warp processes 512 bytes of whole rows, 16 bytes per lane.
  static constexpr int kChunks = C::kHeadDim / 16;    // 16-byte chunks per row
  static constexpr int kStepBytes = 512, kStepRows = 32 / kChunks;
  static constexpr int kSteps = kRows / kStepRows;
  static_assert(kSteps * kStepBytes == C::Tile::kRawBytes && kParts <= 2);
};

// The role of warp 0.
template <class C>
struct RawLoader : RowCopier<C> {
  using Raw = RawTile<C>;
  using RowCopier<C>::smem, RowCopier<C>::p;
  Ring<C::Tile::kRawSlots> ring{};

  // Issues the loads of the tile at `start`: the parts of K, then of V. `page` is the page table entry of this lane's box.
  __device__ __forceinline__ void issue_loads(const Work& work, const Pages<C>& pages, int start, int page) {
    constexpr int kAtOnce = 4;
    const int lane = threadIdx.x % 32, token = lane * p.box, end = min(work.range.end - start, C::kTileKv);
    const int slot = pages.slot_of(start + token), id = pages.checked(page), bytes = p.box * C::kHeadDim;
    const unsigned current = __ballot_sync(0xffffffffu, token < end);
    const unsigned early = __ballot_sync(0xffffffffu, token < Raw::kRows) & current;
    smem.boxes[0][lane] = {slot, id * p.k_page + work.head};
    smem.boxes[1][lane] = {slot, id * p.v_page + work.head};
    __syncwarp();
    if (elected()) {
#pragma unroll 1
      for (int part = 0; part < 2 * Raw::kParts; ++part, ring.advance()) {
        const bool values = part >= Raw::kParts, later = part % Raw::kParts != 0;
        const TensorMap& map = values ? p.v_map : p.k_map;
        const int boxes = __popc(later ? current ^ early : early);
        const PageBox* at = smem.boxes[values] + (later ? __popc(early) : 0);
        const uint32_t full = ring.at(smem.raw.full);
        uint32_t dst = smem_address(smem.raw.slots[ring.stage]);
        // The boxes are read before the wait for an empty slot, to hide their latency. Therefore the wait and the arrival are
        // in the loop, which has at least one iteration, even without boxes.
        for (int i = 0; i == 0 || i < boxes; i += kAtOnce, at += kAtOnce) {
          PageBox box[kAtOnce];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) box[j] = at[j];
          if (i == 0) {
            ring.wait_empty(smem.raw.empty);
            mbarrier_arrive_expect(full, boxes * bytes);
          }
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j, dst += bytes) {
            if (i + j >= boxes) break;
            tma_load(dst, map, full, {{0, box[j].group, box[j].place, 0, 0}});
          }
        }
      }
    } else {
#pragma unroll
      for (int part = 0; part < 2 * Raw::kParts; ++part) ring.advance();
    }
    __syncwarp();
  }

  // The same for copies by threads. `page` contains the entries of this lane's rows. Rows outside the range are masked or
  // zeroed later, so they may have any valid address.
  __device__ __forceinline__ void publish_rows(const Work& work, const Pages<C>& pages, int start,
                                            const typename RowCopier<C>::Entries& page) {
    constexpr int kLookups = RowCopier<C>::kLookups, kOfPart = kLookups / Raw::kParts;  // rows per lane
    int id[kLookups], slot[kLookups];
#pragma unroll
    for (int i = 0; i < kLookups; ++i) {
      const int token = start + this->own_row(i);
      const bool inside = token >= work.range.begin && token < work.range.end;
      id[i] = inside ? pages.checked(page[i]) : 0, slot[i] = inside ? pages.slot_of(token) : 0;
    }
#pragma unroll
    for (int part = 0; part < 2 * Raw::kParts; ++part, ring.advance()) {
      const PoolTensor& pool = part < Raw::kParts ? p.base.k : p.base.v;
      ring.wait_empty(smem.raw.empty);
#pragma unroll
      for (int i = 0; i < kOfPart; ++i) {
        const int of = part % Raw::kParts * kOfPart + i;
        smem.raw.rows[ring.stage][this->own_row(i)] = token_address(pool, id[of], slot[of], work.head);
      }
      mbarrier_arrive(ring.at(smem.raw.full));
    }
  }
};

// Role of warps 1 to 3: each takes every third step, across the parts of a tile. Without TMA it has the same steps in every
// part, so that the thread that fills a place of the ring has emptied it.
template <class C, bool kMapped>
struct Dequantiser {
  using Raw = RawTile<C>;
  using Shared = WgmmaShared<C>;
  static constexpr int kWarps = kTileWarps<C>;
  static constexpr int kMost = (Raw::kSteps + kWarps - 1) / kWarps;  // the largest number of steps of a warp in a part
  static constexpr int kBatch = kMapped && C::kHeadDim < 256 ? kMost : kMost / 2;  // loads in flight, limited by registers
  // After kPlaces steps, a warp has the same rows of an eight-row group again, kWarps groups later.
  static constexpr int kPlaces = 8 / Raw::kStepRows;

  const WgmmaPrefillParams& p;
  WgmmaShared<C>& smem;
  Ring<C::Tile::kRawSlots> ahead{}, current{};  // the part that is copied next (without TMA), and the part that is converted

  // The first step of this warp. phase: 0 or 1 for alternating parts, because the number of steps in a part is not a multiple
  // of the number of warps.
  __device__ __forceinline__ static int first_step(int phase) {
    const int step = threadIdx.x / 32 - 1 + (kMapped ? phase * (kWarps - Raw::kSteps % kWarps) : 0);
    return step < kWarps ? step : step - kWarps;
  }
  // True if this warp has a step in iteration i of the part.
  __device__ __forceinline__ static bool takes(int phase, int i) {
    return i < kMost - 1 || first_step(phase) + i * kWarps < Raw::kSteps;
  }
  // The address of this lane's bytes in its first step.
  __device__ __forceinline__ uint32_t place(int slot, int phase) const {
    return smem_address(smem.raw.slots[slot]) + first_step(phase) * Raw::kStepBytes + threadIdx.x % 32 * 16;
  }

  // Converts the next part of the ring into its rows of the tile.
  __device__ __forceinline__ void convert(uint32_t tile, int phase) {
    const int lane = threadIdx.x % 32, chunk = lane % Raw::kChunks;
    // A lane converts 16 bytes in two halves, each an 8-byte load and a 16-byte store. Some lanes start with the second half,
    // so that the stores of eight lanes and the loads of sixteen lanes hit every bank once.
    const int swap = (lane / 8 + (Raw::kChunks > 4 ? lane / 4 : 0)) % 2;
    const uint32_t src = place(current.stage, phase) + swap * 8, other = src + 8 - swap * 16;
    if constexpr (kMapped) current.wait_full(smem_address(&smem.raw.full[current.stage]));
#pragma unroll
    for (int from = 0; from < kMost; from += kBatch) {
      uint2 raw[kBatch][2];
#pragma unroll
      for (int i = from; i < from + kBatch; ++i) {
        if (!takes(phase, i)) break;
        raw[i - from][0] = load_shared_8(src + i * kWarps * Raw::kStepBytes);
        raw[i - from][1] = load_shared_8(other + i * kWarps * Raw::kStepBytes);
      }
#pragma unroll
      for (int i = from; i < from + kBatch; ++i) {
        if (!takes(phase, i)) break;
        const int row = (first_step(phase) + i % kPlaces * kWarps) * Raw::kStepRows + lane / Raw::kChunks;
        const uint32_t dst = tile + kv_place<C>(row, chunk * 2 + swap) + i / kPlaces * kWarps * Shared::kKvGroup;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const uint2 low = C::Kv::widen(raw[i - from][part].x), high = C::Kv::widen(raw[i - from][part].y);
          store_shared_16(chunks_on(dst, part), make_uint4(low.x, low.y, high.x, high.y));
        }
      }
    }
    if constexpr (kMapped) mbarrier_arrive(current.at(smem.raw.empty));
    current.advance();
  }

  // Without TMA, copies the bytes of the next part that this thread will convert.
  __device__ __forceinline__ void copy() {
    const int row = threadIdx.x % 32 / Raw::kChunks, column = threadIdx.x % Raw::kChunks * 16;
    const char* const* rows = smem.raw.rows[ahead.stage] + first_step(0) * Raw::kStepRows + row;
    const uint32_t dst = place(ahead.stage, 0);
    ahead.wait_full(smem_address(&smem.raw.full[ahead.stage]));
    if (p.base.kv_aligned) {
#pragma unroll
      for (int i = 0; i < kMost; ++i)
        if (takes(0, i)) cp_async_16(dst + i * kWarps * Raw::kStepBytes, rows[i * kWarps * Raw::kStepRows] + column, true);
    } else {
#pragma unroll 1
      for (int i = 0; i < kMost; ++i)
        if (takes(0, i))
          fetch_chunk<uint8_t>(dst + i * kWarps * Raw::kStepBytes, rows[i * kWarps * Raw::kStepRows] + column, true, false);
    }
    mbarrier_arrive(ahead.at(smem.raw.empty));
    ahead.advance();
  }

  // Two parts are in flight while one is converted.
  __device__ __forceinline__ void copy_ahead(bool more) {
    static_assert(C::Tile::kRawSlots >= 3);
    if (more) copy();
    cp_async_commit();
  }

  __device__ __forceinline__ void run() {
    WorkQueue<C> queue(smem);
    NonfiniteReport<C> nonfinite{smem};
    Ring<C::kStages> ring;
    RowCopier<C> queries{p, smem};
    Ring<Shared::kQStages> q_ring;
    for (;;) {
      const Work& work = queue.peek();
      if (work.tile.rows == 0) break;
      int start = work.last;
      if constexpr (!kMapped) {
        q_ring.wait_empty(smem.q_empty);
        queries.copy_q(work, q_ring.stage);
        q_ring.advance();
        copy_ahead(true), copy_ahead(true);
      }
#pragma unroll 1
      for (int left = 2 * work.tiles; left > 0; --left) {  // K and V alternate
        const bool values = left & 1;
        const uint32_t tile = smem_address(values ? smem.v[ring.stage] : smem.k[ring.stage]);
        ring.wait_empty(smem_address(values ? &smem.v_empty[ring.stage] : &smem.k_empty[ring.stage]));
#pragma unroll
        for (int part = 0; part < Raw::kParts; ++part) {
          if constexpr (!kMapped) {
            copy_ahead(left * Raw::kParts - part > 2);
            cp_async_wait<2>();
            queries.publish_pending();  // the copies of q were issued earlier
          }
          convert(tile + part * (Raw::kRows / 8) * Shared::kKvGroup, Raw::kParts == 1 ? values : part);
        }
        if (values && work.masked(start)) {
          named_sync(kTileWarpBarrier, kWarps * 32);
          nonfinite.publish(ring.stage, check_masked<C>(work, start, tile));
        }
        publish_writes(smem_address(values ? &smem.v_full[ring.stage] : &smem.k_full[ring.stage]));
        if (values) start -= C::kTileKv, ring.advance();
      }
      queue.release();
    }
  }
};

}  // namespace opfacade
