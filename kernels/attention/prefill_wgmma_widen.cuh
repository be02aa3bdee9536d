// K and V of an fp8 cache: bytes arrive in a ring of half tiles, two ahead, and become f16, exactly, on their way into the tile.
// A thread widens the bytes that it has copied itself, so that nobody waits for anybody in between.
#pragma once
#include "kernels/attention/prefill_wgmma_gather.cuh"
#include "kernels/common/fp8.cuh"

namespace opfacade {

template <class C>
struct Widener : Gatherer<C> {
  using Tile = WgmmaTile<C::kHeadDim, C::kKvBytes>;
  static constexpr int kHalf = C::kTileKv / 2;       // tokens
  static constexpr int kChunks = C::kHeadDim / 16;   // of sixteen bytes in a row
  static constexpr int kStep = kWarpgroup / kChunks;  // rows apart that one thread copies
  static constexpr int kAhead = 2;

  using Gatherer<C>::smem, Gatherer<C>::parity, Gatherer<C>::resolve, Gatherer<C>::tell, Gatherer<C>::tell_done;
  int asked = 0;  // the slot of the next half
  int first = 0;  // of the oldest one

  __device__ __forceinline__ static void advance(int& slot) { slot = slot == Tile::kRawSlots - 1 ? 0 : slot + 1; }
  __device__ __forceinline__ uint32_t place(int slot, int i) const {
    return smem_address(smem.raw.slots[slot]) + (i * kWarpgroup + threadIdx.x) * 16;
  }
  __device__ __forceinline__ static int row_of(int part, int i) {
    return part % 2 * kHalf + threadIdx.x / kChunks + i * kStep;
  }

  // Parts of a tile: both halves of K, then of V.
  __device__ __forceinline__ void ask(const Work& work, int part, int start) {
    const PrefillParams& p = this->p.base;
    const char* const* rows = smem.rows[parity][part / 2];
#pragma unroll 2
    for (int i = 0; i < kHalf / kStep; ++i) {
      const int row = row_of(part, i);
      const bool valid = start + row >= work.range.begin && start + row < work.range.end;
      const char* src = valid ? rows[row] + threadIdx.x % kChunks * 16 : static_cast<const char*>(p.k.data);
      fetch_chunk<uint8_t>(place(asked, i), src, valid, p.kv_aligned);
    }
    advance(asked);
  }

  // Returns whether a value is not finite.
  __device__ __forceinline__ bool widen(int part, uint32_t tile) {
    uint32_t found = 0;
#pragma unroll 2
    for (int i = 0; i < kHalf / kStep; ++i) {
      uint4 wide[2];
      widen_16<typename C::Kv>(load_shared_16(place(first, i)), wide);
      const int row = row_of(part, i), chunk = threadIdx.x % kChunks;
      const bool swap = chunk & 4;  // eight threads then write to all banks
      store_shared_16(tile + kv_place<C>(row, chunk * 2 + swap), swap ? wide[1] : wide[0]);
      store_shared_16(tile + kv_place<C>(row, chunk * 2 + !swap), swap ? wide[0] : wide[1]);
      found |= nonfinite_in<C>(wide[0]) | nonfinite_in<C>(wide[1]);
    }
    advance(first);
    return found != 0;
  }

  // The tile at `start`. The first two parts of a work are asked for with its first tile, those of another with the one before.
  __device__ __forceinline__ void load(const Work& work, const Pages<C>& pages, const Ring<C::kStages>& ring, int start,
                                       int page, int next_page, bool begins, bool more) {
    static_assert(Tile::kRawSlots == kAhead + 1, "a slot is asked for as soon as it is free");
    const int stage = ring.stage;
    bool found = false;
#pragma unroll 1
    for (int part = begins ? -kAhead : 0; part < 4; ++part) {
      const int wanted = part + kAhead, from = wanted < 4 ? start : start - C::kTileKv;
      if (wanted == 0 || (wanted == 4 && more)) resolve(pages, work, from, wanted == 0 ? page : next_page);
      if (wanted < 4 || more) ask(work, wanted % 4, from);
      cp_async_commit();
      if (part < 0) continue;
      cp_async_wait<kAhead>();
      this->tell_pending();  // queries, which were asked for before
      if (part == 0) mbarrier_wait(smem_address(&smem.k_empty[stage]), ring.parity ^ 1);
      if (part == 2) mbarrier_wait(smem_address(&smem.v_empty[stage]), ring.parity ^ 1), found = false;
      found |= widen(part, smem_address(part < 2 ? smem.k[stage] : smem.v[stage]));
      if (part == 1) tell_done(smem_address(&smem.k_full[stage]));
    }
    if ((C::kCausal || C::kWindow) && MaskedTiles<C>(this->p.base, work)(start)) tell(stage, found);
    tell_done(smem_address(&smem.v_full[stage]));
  }
};

}  // namespace opfacade
