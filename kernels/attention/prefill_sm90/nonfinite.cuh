// A masked key has weight 0, but 0 * NaN is NaN. Non-finite values of masked tiles are added to the rows that see them and
// removed from the tile before the product. Rare, so the code is small rather than fast.
#pragma once
#include "kernels/attention/prefill_sm90/math.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ uint32_t pair_address(int key, int block) {
  return kv_place<C>(key, block) + 2 * lane_column();
}

// Calls add(block, key, sees, four) for each 8-column block of the output and each key of a tile: `sees` tells for each of this
// thread's rows whether the key is visible, `four` are the thread's elements of the block. o is rotated so that each block is
// once in the registers of the first block: an unrolled loop would be a twelfth of the kernel's code.
template <class C, class Add>
__device__ __forceinline__ void add_by_key(const PrefillParams& p, const Work& work, int start, const WgmmaShown& shown,
                                           float (&o)[C::kHeadDimVo / 2], Add add) {
  constexpr int kLast = C::kHeadDimVo / 2 - 4;
  const KvRange seen[2] = {row_range<C>(p, work.tile, work.range, wgmma_row(0)),
                           row_range<C>(p, work.tile, work.range, wgmma_row(1))};
#pragma unroll 1
  for (int block = 0; block < C::kHeadDimVo / 8; ++block) {
    float four[4] = {o[0], o[1], o[2], o[3]};
#pragma unroll 1
    for (int key = 0; key < C::kTileKv; ++key) {
      bool sees[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sees[half] = start + key >= seen[half].begin && start + key < seen[half].end;
        if constexpr (kHidesMore<C>)  // the thread with this element has its mask bit
          sees[half] = __shfl_sync(0xffffffffu, shown[half], (threadIdx.x & 28) + column_thread(key)) >> column_element(key) & 1;
      }
      add(block, key, sees, four);
    }
#pragma unroll
    for (int i = 0; i < kLast; ++i) o[i] = o[i + 4];
#pragma unroll
    for (int i = 0; i < 4; ++i) o[kLast + i] = four[i];
  }
}

template <class C>
__device__ __forceinline__ void add_nonfinite(const PrefillParams& p, const Work& work, int start, const unsigned char* v,
                                              const WgmmaShown& shown, float (&o)[C::kHeadDimVo / 2]) {
  using T = typename C::T;
  add_by_key<C>(p, work, start, shown, o, [&](int block, int key, const bool(&sees)[2], float(&four)[4]) {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(v + pair_address<C>(key, block));
    const uint32_t nonfinite = halves_mask(nonfinite_halves<T>(pair));
    const uint32_t kept = (pair & nonfinite) | (0x80008000u & ~nonfinite);  // adding -0 changes nothing
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (sees[i / 2]) four[i] += T::unpack(static_cast<uint16_t>(kept >> i % 2 * 16));
  });
}

// Must be called by all consumer warpgroups at the same tile, while no product in flight writes o or reads this tile.
template <class C>
__device__ __forceinline__ void isolate_nonfinite(const PrefillParams& p, const Work& work, int start, unsigned char* v,
                                                  const WgmmaShown& shown, WgmmaRows<C>& rows) {
  add_nonfinite<C>(p, work, start, v, shown, rows.o);
  named_sync(kConsumerBarrier, kConsumerThreads<C>);
  uint32_t* words = reinterpret_cast<uint32_t*>(v);
#pragma unroll 1
  for (int i = threadIdx.x - kWarpgroup; i < C::kTileKv * C::kHeadDimVo / 2; i += kConsumerThreads<C>)
    words[i] &= ~halves_mask(nonfinite_halves<typename C::T>(words[i]));
  fence_async_shared();
  named_sync(kConsumerBarrier, kConsumerThreads<C>);
}

}  // namespace opfacade
