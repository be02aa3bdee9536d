// Tile math of a consumer warpgroup with fp8 products: the value products of a tile go to separate registers and are added to o
// in f32. The accumulator of fp8 tensor cores keeps about 13 bits below its largest term, so a sum over a long context would
// lose bits.
#pragma once
#include "kernels/attention/prefill_sm90/nonfinite.cuh"
#include "kernels/attention/prefill_sm90/fp8/transpose.cuh"
#include "kernels/attention/lazy_softmax_fp8.cuh"
#include "kernels/attention/q_transform.cuh"
#include "kernels/ptx/wgmma_fp8.cuh"

namespace opfacade {

template <class C>
using TileOutput = float[C::kHeadDim / 2];

// q: the low descriptor word of 64 rows.
template <class C>
__device__ __forceinline__ void issue_fp8_scores(uint32_t q, uint32_t k, float (&s)[C::kTileKv / 2]) {
  static_assert(WgmmaShared<C>::kPanels == 1, "a row of q is one panel");
  asm volatile("" : "+r"(q));  // otherwise every descriptor stays in registers across tiles
  wgmma_fence();
  const Descriptors a({q, row_descriptor(0).high}, 32), b = row_steps(k, WgmmaShared<C>::kKvGroup);
  Wgmma<typename C::T, C::kTileKv>::ss(s, a, b, false);
  wgmma_commit();
}

// v: the transposed tile, with one row per column of V.
template <class C>
__device__ __forceinline__ void issue_tile(const uint32_t (&weights)[C::kTileKv / 8], uint32_t v, TileOutput<C>& t) {
  wgmma_fence();
  static_assert(C::kTileKv == 32 * kWgmmaSteps, "all keys of a tile");
  WgmmaRegisters<typename C::T, C::kHeadDim>::rs(t, weights, row_steps(v), false);
  wgmma_commit();
}

template <class C>
__device__ __forceinline__ void add_tile(const TileOutput<C>& t, WgmmaRows<C>& rows) {
#pragma unroll
  for (int i = 0; i < C::kHeadDim / 2; ++i) rows.o[i] += t[i];
}

// Applies the sign of sm_scale to rows of q: see q_transform.cuh.
template <class C>
__device__ __forceinline__ void transform_fp8_queries(unsigned char* rows, QTransform transform) {
  uint32_t* words = reinterpret_cast<uint32_t*>(rows);
#pragma unroll 1
  for (int i = threadIdx.x % kWarpgroup; i < 64 * C::kHeadDim / 4; i += kWarpgroup)
    words[i] = transform == QTransform::kNegate ? words[i] ^ 0x80808080u : words[i] & bytes_mask(nan_bytes(words[i]));
}

// As isolate_nonfinite, but for a transposed tile.
template <class C>
__device__ __forceinline__ void isolate_nan(const PrefillParams& p, const Work& work, int start, unsigned char* v,
                                            WgmmaRows<C>& rows) {
  static_assert(!kHidesMore<C>, "rows see a range of keys");
  const WgmmaShown shown = {};
  add_by_key<C>(p, work, start, shown, rows.o, [&](int block, int key, const bool(&sees)[2], float(&four)[4]) {
    const int place = transposed_place(key);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = block * 8 + lane_column() + i % 2;
      const unsigned char value = v[panel_address(row, place / 16) + place % 16];
      if ((value & 0x7f) == 0x7f && sees[i / 2]) four[i] = __int_as_float(0x7fffffff);
    }
  });
  named_sync(kConsumerBarrier, kConsumerThreads<C>);
  uint32_t* words = reinterpret_cast<uint32_t*>(v);
#pragma unroll 1
  for (int i = threadIdx.x - kWarpgroup; i < C::kTileKv * C::kHeadDim / 4; i += kConsumerThreads<C>)
    words[i] &= ~bytes_mask(nan_bytes(words[i]));
  fence_async_shared();
  named_sync(kConsumerBarrier, kConsumerThreads<C>);
}

}  // namespace opfacade
