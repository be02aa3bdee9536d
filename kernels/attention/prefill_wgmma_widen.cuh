// K and V of an fp8 cache: bytes arrive in a ring of half tiles, two ahead, and become f16, exactly, on their way into the tile.
// A thread widens the bytes that it has copied itself, so that nobody waits for anybody in between. Its own line of a tile is
// what limits the block: so all of a half is under way at once, and nothing is looked at that is not needed.
#pragma once
#include "kernels/attention/prefill_wgmma_gather.cuh"
#include "kernels/common/fp8.cuh"

namespace opfacade {

template <class C>
struct Widener : Gatherer<C> {
  using Tile = WgmmaTile<C::kHeadDim, C::kKvBytes>;
  using Shared = WgmmaShared<C>;
  static constexpr int kHalf = C::kTileKv / 2;       // tokens
  static constexpr int kChunks = C::kHeadDim / 16;   // of sixteen bytes in a row
  static constexpr int kStep = kWarpgroup / kChunks;  // rows apart that one thread copies
  static constexpr int kRows = kHalf / kStep;         // that it copies of a half

  using typename Gatherer<C>::Entries;
  using Gatherer<C>::smem, Gatherer<C>::parity, Gatherer<C>::wild, Gatherer<C>::tell_done;
  int asked = 0;  // the slot of the next half
  int first = 0;  // of the oldest one

  __device__ __forceinline__ static void advance(int& slot) { slot = slot == Tile::kRawSlots - 1 ? 0 : slot + 1; }
  __device__ __forceinline__ uint32_t place(int slot) const { return smem_address(smem.raw.slots[slot]) + threadIdx.x * 16; }
  // This thread's first row of a half.
  __device__ __forceinline__ static int row_of(int half) { return half * kHalf + threadIdx.x / kChunks; }

  // Half of the keys or values of a tile. What it needs is found anew each time: registers are scarce.
  __device__ __forceinline__ void ask(const Work& work, int start, bool values, int half) {
    const PrefillParams& p = this->p.base;
    const int column = threadIdx.x % kChunks * 16, first_row = row_of(half);
    const int begin = work.range.begin - start - first_row, end = work.range.end - start - first_row;
    const char* const* rows = smem.rows[parity][values] + first_row;
    const uint32_t dst = place(asked);
    const char* any = static_cast<const char*>(p.k.data);
    if (p.kv_aligned) {
      const char* src[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) src[i] = rows[i * kStep] + column;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const bool valid = i * kStep >= begin && i * kStep < end;
        cp_async_16(dst + i * kWarpgroup * 16, valid ? src[i] : any, valid);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kRows; ++i) {
        const bool valid = i * kStep >= begin && i * kStep < end;
        fetch_chunk<uint8_t>(dst + i * kWarpgroup * 16, valid ? rows[i * kStep] + column : any, valid, false);
      }
    }
    advance(asked);
  }

  // In two pieces of eight bytes, so that eight threads write to all banks: half of them the second piece first.
  __device__ __forceinline__ void widen(int half, uint32_t tile) const {
    static_assert(kStep % 8 == 0, "the rows of a thread have the same swizzle");
    const int chunk = threadIdx.x % kChunks, swap = chunk / 4 % 2, row = row_of(half);
    const uint32_t src = place(first) + swap * 8, other = place(first) + 8 - swap * 8;
    const uint32_t dst[2] = {tile + kv_place<C>(row, chunk * 2 + swap), tile + kv_place<C>(row, chunk * 2 + 1 - swap)};
    uint2 raw[kRows][2];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      raw[i][0] = load_shared_8(src + i * kWarpgroup * 16);
      raw[i][1] = load_shared_8(other + i * kWarpgroup * 16);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int piece = 0; piece < 2; ++piece) {
        const uint2 low = C::Kv::widen(raw[i][piece].x), high = C::Kv::widen(raw[i][piece].y);
        store_shared_16(dst[piece] + i * (kStep / 8) * Shared::kKvGroup, make_uint4(low.x, low.y, high.x, high.y));
      }
  }
  // Whether a value of the oldest half is not finite. Rare, so small rather than fast.
  __device__ __forceinline__ bool looks_wild() const {
    uint32_t found = 0;
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
      uint4 wide[2];
      widen_16<typename C::Kv>(load_shared_16(place(first) + i * kWarpgroup * 16), wide);
      found |= nonfinite_in<C>(wide[0]) | nonfinite_in<C>(wide[1]);
    }
    return found != 0;
  }

  __device__ __forceinline__ void resolve(const Pages<C>& pages, const Work& work, int start, int entry) {
    static_assert(Gatherer<C>::kLookups == 1, "a thread has one row");
    const Entries page = {entry};
    parity ^= 1;
    Gatherer<C>::resolve(pages, this->p.base.k, work.head, start, page, false);
    Gatherer<C>::resolve(pages, this->p.base.v, work.head, start, page, true);
    named_sync(kLoading, kWarpgroup);
  }

  // The tile at `start`, in four parts: the halves of its keys, then of its values. Each is asked for two parts ahead, those of
  // another tile with the one before, so that the first two of a work come before all.
  __device__ __forceinline__ void load(const Work& work, const Pages<C>& pages, const Ring<C::kStages>& ring, int start,
                                       const Entries& page, const Entries& next_page, bool begins, bool more) {
    static_assert(Tile::kRawSlots == 3, "a slot is asked for as soon as it is free");
    const int stage = ring.stage;
    const bool reports = kReportsWild<C> && work.masked(start);
    bool found = false;
#pragma unroll 1
    for (int part = begins ? -2 : 0; part < 4; ++part) {
      const int wanted = part + 2, from = wanted < 4 ? start : start - C::kTileKv;
      if (wanted == 0 || (wanted == 4 && more)) resolve(pages, work, from, wanted == 0 ? page[0] : next_page[0]);
      if (wanted < 4 || more) ask(work, from, wanted & 2, wanted & 1);
      cp_async_commit();
      if (part < 0) continue;
      cp_async_wait<2>();
      this->tell_pending();  // queries, which were asked for before
      if (part == 0) mbarrier_wait(smem_address(&smem.k_empty[stage]), ring.parity ^ 1);
      if (part == 2) mbarrier_wait(smem_address(&smem.v_empty[stage]), ring.parity ^ 1);
      widen(part & 1, smem_address(part < 2 ? smem.k[stage] : smem.v[stage]));
      if (reports && part >= 2) found |= looks_wild();
      advance(first);
      if (part == 1) tell_done(smem_address(&smem.k_full[stage]));
    }
    if (reports) wild.tell(stage, found);
    tell_done(smem_address(&smem.v_full[stage]));
  }
};

}  // namespace opfacade
