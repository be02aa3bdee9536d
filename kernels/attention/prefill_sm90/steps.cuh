// The parts of a consumer step that need no barrier: the bases of rows, the weights of a tile and their sums.
#pragma once
#include "kernels/attention/prefill_sm90/math.cuh"

namespace opfacade {

template <class C>
using WgmmaScores = float[C::kTileKv / 2];
template <class C>
using WgmmaWeights = uint32_t[C::kTileKv / 4];

// Waits for the value products. The waits are behind branches: see wgmma_wait_all_at.
template <class C>
__device__ __forceinline__ void wait_products(bool ends, const WgmmaWeights<C>& weights, WgmmaRows<C>& rows) {
  if (rarely(ends)) {
    wgmma_wait_all_at<1>();
  } else {
    wgmma_wait_all_at<2>();
  }
  pin(rows.o);
  keep_alive(weights);
}

// Sets the base of rows whose first tile this is.
template <class C>
__device__ __forceinline__ void begin_rows(
    const WgmmaScores<C>& s, const float (&exponent)[2], const ScoreLine<C>& line, RowScale& scale) {
  float shrunk[2];
  scale = RowScale(), update_base<C>(scale, s, exponent, {true, true}, shrunk, line);
}

// Weights are computed before the maximum is known. The early weights stay in other registers until the products have read the
// previous weights. With three warpgroups there is enough other work, so no weights are computed early.
template <class C, int kEarlyWords>
__device__ __forceinline__ void compute_early(
    const WgmmaScores<C>& s, const float (&base)[2], const float (&exponent)[2], const ScoreLine<C>& line, WgmmaWeights<C>& early,
    float (&parts)[2][2]) {
  if constexpr (kEarlyWords > 0) {
    compute_weights<C, 0, kEarlyWords>(s, base, exponent, early, parts, line);
    pin(early);
  }
}
template <class C, int kEarlyWords>
__device__ __forceinline__ void compute_late(
    const WgmmaScores<C>& s, const float (&base)[2], const float (&exponent)[2], const ScoreLine<C>& line,
    const WgmmaWeights<C>& early, WgmmaWeights<C>& weights, float (&parts)[2][2]) {
#pragma unroll
  for (int i = 0; i < kEarlyWords; ++i) weights[i] = early[i];
  compute_weights<C, kEarlyWords, C::kTileKv / 4>(s, base, exponent, weights, parts, line);
}

// Adds the weights of a tile, unless a weight exceeds the base of its row. has: the rows with such a weight. Returns true if
// any row of the warp has one.
__device__ __forceinline__ bool add_sums(const float (&parts)[2][2], bool (&has)[2], RowScale& scale) {
  float sum[2];
  sum_parts(parts, sum);
#pragma unroll
  for (int half = 0; half < 2; ++half) has[half] = exceeds_base(sum[half], scale.base[half]);
  const bool needs_rescale = __any_sync(0xffffffffu, has[0] || has[1]);
#pragma unroll
  for (int half = 0; half < 2; ++half) sum[half] = needs_rescale ? 0.f : sum[half];
  scale.add(sum);
  return needs_rescale;
}

}  // namespace opfacade
