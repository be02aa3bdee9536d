// The functions of lazy_softmax.cuh for e4m3 weights, which have 3 mantissa bits and a largest value of 448.
#pragma once
#include "kernels/ptx/fp8.cuh"
#include "kernels/attention/lazy_softmax.cuh"

namespace opfacade {

// A score at the base has the weight 2^4. A weight saturates if its score exceeds the base by 4.8 binary orders, so bases
// change rarely. Weights keep all their bits down to 2^-10 of the weight at the base, and become 0 at 2^-14.
constexpr float kHeadroom = 4.f;
constexpr float kLargestWeight = 448.f;

// The base of a row as an addend of its exponents. It is +inf if the row has seen no key, so that any first weight is too large
// or NaN.
__device__ __forceinline__ float shift_of(float base, float exponent) {
  return base == minus_infinity() ? -minus_infinity() : fmaf(-base, exponent, kHeadroom);
}
__device__ __forceinline__ float finite_shift(float shift) { return shift == -minus_infinity() ? 0.f : shift; }

// As in lazy_softmax.cuh, but from two sums: a weight cannot exceed the sum that contains it. If all weights are at the base,
// the sum is 256, which needs no new base.
__device__ __forceinline__ bool exceeds_base(const float (&parts)[2]) {
  return !(parts[0] <= kLargestWeight) || !(parts[1] <= kLargestWeight);
}

// As in lazy_softmax.cuh. The shift decreases if the base increases.
template <class C>
__device__ __forceinline__ void update_base(float (&shift)[2], const float (&s)[C::kTileKv / 2], float exponent, const bool (&has)[2],
                                       float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool any = quad_any(has[half]);
    const float lowest = shift_of(largest<C>(s, half, Line<false>()), exponent), old = shift[half];
    const bool grown = any && lowest < old;
    shift[half] = grown ? lowest : old;
    factor[half] = grown ? exp2_approx(lowest - old) : 1.f;
  }
}

// Converts scores to e4m3 weights and returns their sums. A word contains four scores of a row, in the order of
// transpose_bytes.cuh.
template <class C>
__device__ __forceinline__ void compute_weights_fp8(const float (&s)[C::kTileKv / 2], const float (&shift)[2], float exponent,
                                          uint32_t (&weights)[C::kTileKv / 8], float (&parts)[2][2]) {
#pragma unroll
  for (int i = 0; i < C::kTileKv / 8; ++i) {
    const int half = i % 2;
    float w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      w[j] = exp2_approx(fmaf(s[i / 2 * 8 + row_index(half, j)], exponent, shift[half]));
      parts[half][j % 2] = i < 2 && j < 2 ? w[j] : parts[half][j % 2] + w[j];
    }
    weights[i] = E4M3::narrow(w[0], w[1]) | static_cast<uint32_t>(E4M3::narrow(w[2], w[3])) << 16;
  }
}

}  // namespace opfacade
