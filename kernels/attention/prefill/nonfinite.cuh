// A masked key has weight 0, but 0 * NaN is NaN. In tiles with masked keys, non-finite values are removed from the tensor-core
// product and added to the rows that attend to them. This case is rare, so the code is small rather than fast.
#pragma once
#include "kernels/attention/prefill/math.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ bool has_nonfinite_value(const PrefillSmem<C>& smem) {
  const uint4* chunks = reinterpret_cast<const uint4*>(smem.v);
  uint32_t found = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < sizeof(smem.v) / 16; i += C::kWarps * 32) {
    const uint4 c = chunks[i];
    found |= nonfinite_halves<typename C::T>(c.x) | nonfinite_halves<typename C::T>(c.y) |
             nonfinite_halves<typename C::T>(c.z) | nonfinite_halves<typename C::T>(c.w);
  }
  return __syncthreads_or(found != 0);
}

template <class C>
__device__ __forceinline__ void add_nonfinite_values(const PrefillParams& p, const RowTile& tile, const KvRange& range,
                                                     int start, const Shown<C>& shown, const PrefillSmem<C>& smem,
                                                     RowState<C>& state) {
  using State = RowState<C>;
  using T = typename C::T;
#pragma unroll 1
  for (int key = 0; key < C::kTileKv; ++key) {
    bool sees[State::kRowBlocks][2];
#pragma unroll
    for (int b = 0; b < State::kRowBlocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const KvRange seen = row_range<C>(p, tile, range, tile_row<C>(b, half));
        sees[b][half] = start + key >= seen.begin && start + key < seen.end;
        if constexpr (kHidesMore<C>) {  // the thread with this element has its mask bit
          const uint32_t bits = __shfl_sync(0xffffffffu, shown[b], (threadIdx.x & 28) + key % 8 / 2);
          sees[b][half] = bits >> (half * 16 + key / 8 * 2 + key % 2) & 1;
        }
      }
#pragma unroll
    for (int n = 0; n < State::kDimBlocks; ++n) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(smem.v + swizzled<C::kHeadDim / 8>(key, n) +
                                                               threadIdx.x % 4 * 4);
      if (nonfinite_halves<T>(pair) == 0) continue;
      const uint32_t kept = pair & halves_mask(nonfinite_halves<T>(pair));
#pragma unroll
      for (int b = 0; b < State::kRowBlocks; ++b)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (sees[b][half]) {
            state.o[b][n][half * 2] += T::unpack(static_cast<uint16_t>(kept));
            state.o[b][n][half * 2 + 1] += T::unpack(static_cast<uint16_t>(kept >> 16));
          }
    }
  }
}

template <class C>
__device__ __forceinline__ void drop_nonfinite_values(PrefillSmem<C>& smem) {
  uint32_t* words = reinterpret_cast<uint32_t*>(smem.v);
#pragma unroll 1
  for (int i = threadIdx.x; i < sizeof(smem.v) / 4; i += C::kWarps * 32)
    words[i] &= ~halves_mask(nonfinite_halves<typename C::T>(words[i]));
}

// Must be called by every thread of the CTA, after the values have arrived and before their use.
template <class C>
__device__ __forceinline__ void isolate_nonfinite_values(const PrefillParams& p, const RowTile& tile, const KvRange& range,
                                                         int start, const Shown<C>& shown, PrefillSmem<C>& smem,
                                                         RowState<C>& state) {
  if (!has_nonfinite_value(smem)) return;
  add_nonfinite_values<C>(p, tile, range, start, shown, smem, state);
  __syncthreads();
  drop_nonfinite_values(smem);
  __syncthreads();
}

}  // namespace opfacade
