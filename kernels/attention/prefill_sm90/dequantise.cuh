// K and V of an fp8 cache: pieces of tiles come as they lie in memory into a ring, and warps 1 to 3 make f16 of them, exactly, in
// the tiles that products read. Warp 0 asks the copy engine for them, or where that cannot, says where their rows lie, and each
// thread copies what it widens. Its own line of a piece is what limits the block, so it finds nothing itself.
#pragma once
#include "kernels/attention/prefill_sm90/gather.cuh"
#include "kernels/ptx/fp8.cuh"

namespace opfacade {

template <class C>
struct RawTile {
  static constexpr int kRows = C::Tile::kRawRows;
  static constexpr int kPieces = C::kTileKv / kRows;  // of K or V
  // A warp's step: 512 bytes of whole rows, sixteen of them a lane.
  static constexpr int kChunks = C::kHeadDim / 16;    // of sixteen bytes in a row
  static constexpr int kStepBytes = 512, kStepRows = 32 / kChunks;
  static constexpr int kSteps = kRows / kStepRows;
  static_assert(kSteps * kStepBytes == C::Tile::kRawBytes && kPieces <= 2);
};

// Warp 0.
template <class C>
struct RawLoader : Gatherer<C> {
  using Raw = RawTile<C>;
  using Gatherer<C>::smem, Gatherer<C>::p;
  Ring<C::Tile::kRawSlots> ring{};

  // The tile at `start`: the pieces of its keys, then of its values. `page` is the entry of this lane's box.
  __device__ __forceinline__ void ask(const Work& work, const Pages<C>& pages, int start, int page) {
    constexpr int kAtOnce = 4;
    const int lane = threadIdx.x % 32, token = lane * p.box, end = min(work.range.end - start, C::kTileKv);
    const int slot = pages.slot_of(start + token), id = pages.checked(page), bytes = p.box * C::kHeadDim;
    const unsigned here = __ballot_sync(0xffffffffu, token < end);
    const unsigned early = __ballot_sync(0xffffffffu, token < Raw::kRows) & here;
    smem.boxes[0][lane] = {slot, id * p.k_page + work.head};
    smem.boxes[1][lane] = {slot, id * p.v_page + work.head};
    __syncwarp();
    if (elected()) {
#pragma unroll 1
      for (int part = 0; part < 2 * Raw::kPieces; ++part, ring.advance()) {
        const bool values = part >= Raw::kPieces, later = part % Raw::kPieces != 0;
        const TensorMap& map = values ? p.v_map : p.k_map;
        const int boxes = __popc(later ? here ^ early : early);
        const PageBox* at = smem.boxes[values] + (later ? __popc(early) : 0);
        const uint32_t full = smem_address(&smem.raw.full[ring.stage]);
        uint32_t dst = smem_address(smem.raw.slots[ring.stage]);
        // At least once, though there may be none: where they go is read before there is room for them.
        for (int i = 0; i == 0 || i < boxes; i += kAtOnce, at += kAtOnce) {
          PageBox box[kAtOnce];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) box[j] = at[j];
          if (i == 0) {
            mbarrier_wait(smem_address(&smem.raw.empty[ring.stage]), ring.parity ^ 1);
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
      for (int part = 0; part < 2 * Raw::kPieces; ++part) ring.advance();
    }
    __syncwarp();
  }

  // The same for threads that copy. `page`: entries of this lane's rows. What is outside the range is masked, or swept, so any row
  // will do there.
  __device__ __forceinline__ void tell_rows(const Work& work, const Pages<C>& pages, int start,
                                            const typename Gatherer<C>::Entries& page) {
    constexpr int kLookups = Gatherer<C>::kLookups, kOfPiece = kLookups / Raw::kPieces;  // rows of a lane
    int id[kLookups], slot[kLookups];
#pragma unroll
    for (int i = 0; i < kLookups; ++i) {
      const int token = start + this->own_row(i);
      const bool inside = token >= work.range.begin && token < work.range.end;
      id[i] = inside ? pages.checked(page[i]) : 0, slot[i] = inside ? pages.slot_of(token) : 0;
    }
#pragma unroll
    for (int part = 0; part < 2 * Raw::kPieces; ++part, ring.advance()) {
      const PoolTensor& pool = part < Raw::kPieces ? p.base.k : p.base.v;
      mbarrier_wait(smem_address(&smem.raw.empty[ring.stage]), ring.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kOfPiece; ++i) {
        const int of = part % Raw::kPieces * kOfPiece + i;
        smem.raw.rows[ring.stage][this->own_row(i)] = token_address(pool, id[of], slot[of], work.head);
      }
      mbarrier_arrive(smem_address(&smem.raw.full[ring.stage]));
    }
  }
};

// Warps 1 to 3: each takes every third step, on from piece to piece of a tile. Where threads copy it has the same steps in every
// piece, so that who fills a place of the ring has emptied it.
template <class C, bool kMapped>
struct Widener {
  using Raw = RawTile<C>;
  using Shared = WgmmaShared<C>;
  static constexpr int kWarps = kSweepers<C>;
  static constexpr int kMost = (Raw::kSteps + kWarps - 1) / kWarps;             // steps of a warp in a piece
  static constexpr int kBatch = kMapped && C::kHeadDim < 256 ? kMost : kMost / 2;  // under way at once, as there are registers
  static constexpr int kPlaces = 8 / Raw::kStepRows;  // steps of a warp until one lies three groups of eight rows on

  const WgmmaPrefillParams& p;
  WgmmaShared<C>& smem;
  Ring<C::Tile::kRawSlots> coming{}, here{};

  // This warp's first step, of the first piece (turn 0) or the one after it, and whether it has an i-th one.
  __device__ __forceinline__ static int first_step(int turn) {
    const int step = threadIdx.x / 32 - 1 + (kMapped ? turn * (kWarps - Raw::kSteps % kWarps) : 0);
    return step < kWarps ? step : step - kWarps;
  }
  __device__ __forceinline__ static bool takes(int turn, int i) {
    return i < kMost - 1 || first_step(turn) + i * kWarps < Raw::kSteps;
  }
  // This lane's bytes of its first step.
  __device__ __forceinline__ uint32_t place(int slot, int turn) const {
    return smem_address(smem.raw.slots[slot]) + first_step(turn) * Raw::kStepBytes + threadIdx.x % 32 * 16;
  }

  // The next piece of the ring, to where it belongs in its tile.
  __device__ __forceinline__ void widen(uint32_t tile, int turn) {
    const int lane = threadIdx.x % 32, chunk = lane % Raw::kChunks;
    // In two pieces of eight bytes, some lanes the second one first: so that eight write to all banks, and sixteen read from all.
    const int swap = (lane / 8 + (Raw::kChunks > 4 ? lane / 4 : 0)) % 2;
    const uint32_t src = place(here.stage, turn) + swap * 8, other = src + 8 - swap * 16;
    if constexpr (kMapped) mbarrier_wait(smem_address(&smem.raw.full[here.stage]), here.parity);
#pragma unroll
    for (int from = 0; from < kMost; from += kBatch) {
      uint2 raw[kBatch][2];
#pragma unroll
      for (int i = from; i < from + kBatch; ++i) {
        if (!takes(turn, i)) break;
        raw[i - from][0] = load_shared_8(src + i * kWarps * Raw::kStepBytes);
        raw[i - from][1] = load_shared_8(other + i * kWarps * Raw::kStepBytes);
      }
#pragma unroll
      for (int i = from; i < from + kBatch; ++i) {
        if (!takes(turn, i)) break;
        const int row = (first_step(turn) + i % kPlaces * kWarps) * Raw::kStepRows + lane / Raw::kChunks;
        const uint32_t dst = tile + kv_place<C>(row, chunk * 2 + swap) + i / kPlaces * kWarps * Shared::kKvGroup;
#pragma unroll
        for (int piece = 0; piece < 2; ++piece) {
          const uint2 low = C::Kv::widen(raw[i - from][piece].x), high = C::Kv::widen(raw[i - from][piece].y);
          store_shared_16(dst ^ piece * 16, make_uint4(low.x, low.y, high.x, high.y));
        }
      }
    }
    if constexpr (kMapped) mbarrier_arrive(smem_address(&smem.raw.empty[here.stage]));
    here.advance();
  }

  // Where threads copy: what this one will widen of the next piece.
  __device__ __forceinline__ void copy() {
    const int row = threadIdx.x % 32 / Raw::kChunks, column = threadIdx.x % Raw::kChunks * 16;
    const char* const* rows = smem.raw.rows[coming.stage] + first_step(0) * Raw::kStepRows + row;
    const uint32_t dst = place(coming.stage, 0);
    mbarrier_wait(smem_address(&smem.raw.full[coming.stage]), coming.parity);
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
    mbarrier_arrive(smem_address(&smem.raw.empty[coming.stage]));
    coming.advance();
  }

  // Two pieces come while one is widened.
  __device__ __forceinline__ void copy_ahead(bool more) {
    static_assert(C::Tile::kRawSlots >= 3);
    if (more) copy();
    cp_async_commit();
  }

  __device__ __forceinline__ void run() {
    WorkQueue<C> queue(smem);
    WildWriter<C> wild{smem};
    Ring<C::kStages> ring;
    Gatherer<C> queries{p, smem};
    Ring<Shared::kQStages> q_ring;
    for (;;) {
      const Work& work = queue.see();
      if (work.tile.rows == 0) break;
      int start = work.last;
      if constexpr (!kMapped) {
        mbarrier_wait(smem_address(&smem.q_empty[q_ring.stage]), q_ring.parity ^ 1);
        queries.copy_q(work, q_ring.stage);
        q_ring.advance();
        copy_ahead(true), copy_ahead(true);
      }
#pragma unroll 1
      for (int left = 2 * work.tiles; left > 0; --left) {  // K and V, one after the other
        const bool values = left & 1;
        const uint32_t tile = smem_address(values ? smem.v[ring.stage] : smem.k[ring.stage]);
        mbarrier_wait(smem_address(values ? &smem.v_empty[ring.stage] : &smem.k_empty[ring.stage]), ring.parity ^ 1);
#pragma unroll
        for (int piece = 0; piece < Raw::kPieces; ++piece) {
          if constexpr (!kMapped) {
            copy_ahead(left * Raw::kPieces - piece > 2);
            cp_async_wait<2>();
            queries.tell_pending();  // they were asked for before
          }
          widen(tile + piece * (Raw::kRows / 8) * Shared::kKvGroup, Raw::kPieces == 1 ? values : piece);
        }
        if (values && work.masked(start)) {
          named_sync(kLoading, kWarps * 32);
          wild.tell(ring.stage, sweep_masked<C>(work, start, tile));
        }
        Gatherer<C>::tell_done(smem_address(values ? &smem.v_full[ring.stage] : &smem.k_full[ring.stage]));
        if (values) start -= C::kTileKv, ring.advance();
      }
      queue.let_go();
    }
  }
};

}  // namespace opfacade
