// lazy_softmax.cuh for weights of e4m3, which have 3 bits below the first and end at 448.
#pragma once
#include "kernels/ptx/fp8.cuh"
#include "kernels/attention/lazy_softmax.cuh"

namespace opfacade {

// A weight at its base is 2^4. Above it a weight may grow by 2^4.8 before it would saturate, so that a base hardly ever moves;
// below it weights keep their bits down to 2^-10 of it and vanish at 2^-14.
constexpr float kHeadroom = 4.f;
constexpr float kLargestWeight = 448.f;

// Where a row's base lies is said by its shift, what is added to its exponents: infinite where the row has seen no key, so that whatever
// it sees then is too large, or NaN.
__device__ __forceinline__ float shift_of(float base, float exponent) {
  return base == minus_infinity() ? -minus_infinity() : fmaf(-base, exponent, kHeadroom);
}
__device__ __forceinline__ float finite_shift(float shift) { return shift == -minus_infinity() ? 0.f : shift; }

// As the other, from two sums: no weight is larger than its sum. Weights that are all at their base sum up to 256, so they do not.
__device__ __forceinline__ bool outgrown(const float (&parts)[2]) {
  return !(parts[0] <= kLargestWeight) || !(parts[1] <= kLargestWeight);
}

// As the other. A shift falls where a base rises.
template <class C>
__device__ __forceinline__ void follow(float (&shift)[2], const float (&s)[C::kTileKv / 2], float exponent, const bool (&has)[2],
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

// Weights and their sums. Four scores of a row a word, in the order of transpose_bytes.cuh.
template <class C>
__device__ __forceinline__ void weigh_fp8(const float (&s)[C::kTileKv / 2], const float (&shift)[2], float exponent,
                                          uint32_t (&weights)[C::kTileKv / 8], float (&parts)[2][2]) {
#pragma unroll
  for (int i = 0; i < C::kTileKv / 8; ++i) {
    const int half = i % 2;
    float w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      w[j] = exp2_approx(fmaf(s[i / 2 * 8 + j / 2 * 4 + half * 2 + j % 2], exponent, shift[half]));
      parts[half][j % 2] = i < 2 && j < 2 ? w[j] : parts[half][j % 2] + w[j];
    }
    weights[i] = E4M3::narrow(w[0], w[1]) | static_cast<uint32_t>(E4M3::narrow(w[2], w[3])) << 16;
  }
}

}  // namespace opfacade
