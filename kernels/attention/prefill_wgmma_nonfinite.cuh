// A masked key has weight 0, and 0 * NaN is NaN: where a masked tile holds values that are not finite, they are added to the
// rows that see them and taken out of the tile before the product. Rare, so small rather than fast.
#pragma once
#include "kernels/attention/prefill_wgmma_math.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ uint32_t pair_address(int key, int block) {
  return kv_place<C>(key, block) + threadIdx.x % 4 * 4;
}

template <class C>
__device__ __forceinline__ void add_nonfinite(const PrefillParams& p, const Work& work, int start, const unsigned char* v,
                                              const WgmmaShown& shown, WgmmaRows<C>& rows) {
  using T = typename C::T;
#pragma unroll 1
  for (int key = 0; key < C::kTileKv; ++key) {
    bool sees[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KvRange seen = row_range<C>(p, work.tile, work.range, wgmma_row(half));
      sees[half] = start + key >= seen.begin && start + key < seen.end;
      if constexpr (kHidesMore<C>)  // the thread that has this element knows
        sees[half] = __shfl_sync(0xffffffffu, shown[half], (threadIdx.x & 28) + key % 8 / 2) >> (key / 8 * 2 + key % 2) & 1;
    }
#pragma unroll
    for (int block = 0; block < C::kHeadDimVo / 8; ++block) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(v + pair_address<C>(key, block));
      const uint32_t wild = halves_mask(nonfinite_halves<T>(pair));
      const uint32_t kept = (pair & wild) | (0x80008000u & ~wild);  // -0 changes nothing
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (sees[half]) {
          rows.o[block * 4 + half * 2] += T::unpack(static_cast<uint16_t>(kept));
          rows.o[block * 4 + half * 2 + 1] += T::unpack(static_cast<uint16_t>(kept >> 16));
        }
    }
  }
}

// By both computing warpgroups at the same tile, with no product under way that writes o or reads this tile.
template <class C>
__device__ __forceinline__ void isolate_nonfinite(const PrefillParams& p, const Work& work, int start, unsigned char* v,
                                                  const WgmmaShown& shown, WgmmaRows<C>& rows) {
  add_nonfinite<C>(p, work, start, v, shown, rows);
  named_sync(kComputing, kConsumers * kWarpgroup);
  uint32_t* words = reinterpret_cast<uint32_t*>(v);
#pragma unroll 1
  for (int i = threadIdx.x - kWarpgroup; i < C::kTileKv * C::kHeadDimVo / 2; i += kConsumers * kWarpgroup)
    words[i] &= ~halves_mask(nonfinite_halves<typename C::T>(words[i]));
  fence_async_shared();
  named_sync(kComputing, kConsumers * kWarpgroup);
}

}  // namespace opfacade
