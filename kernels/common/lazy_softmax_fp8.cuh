// lazy_softmax.cuh for weights of e4m3, which have 3 bits below the first and end at 448.
#pragma once
#include "kernels/common/fp8.cuh"
#include "kernels/common/lazy_softmax.cuh"

namespace opfacade {

// A weight at its base is 2^4. Above it a weight may grow by 2^4.8 before it would saturate, so that a base hardly ever moves;
// below it weights keep their bits down to 2^-10 of it and vanish at 2^-14.
constexpr float kHeadroom = 4.f;
constexpr float kLargestWeight = 448.f;

// As the other, from two sums: no weight is larger than its sum. Weights that are all at their base sum up to 256, so they do not.
__device__ __forceinline__ bool outgrown(const float (&parts)[2], float base) {
  return !(parts[0] <= kLargestWeight) || !(parts[1] <= kLargestWeight) || base == minus_infinity();
}

// Weights and their sums, added to what is there. Four scores of a row a word, in the order of transpose_bytes.cuh.
template <class C>
__device__ __forceinline__ void weigh_fp8(const float (&s)[C::kTileKv / 2], const float (&base)[2], float exponent,
                                          uint32_t (&weights)[C::kTileKv / 8], float (&parts)[2][2]) {
  const float shift[2] = {fmaf(-finite_max(base[0]), exponent, kHeadroom), fmaf(-finite_max(base[1]), exponent, kHeadroom)};
#pragma unroll
  for (int i = 0; i < C::kTileKv / 8; ++i) {
    const int half = i % 2;
    float w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      w[j] = exp2_approx(fmaf(s[i / 2 * 8 + j / 2 * 4 + half * 2 + j % 2], exponent, shift[half]));
      parts[half][j % 2] += w[j];
    }
    weights[i] = E4M3::narrow(w[0], w[1]) | static_cast<uint32_t>(E4M3::narrow(w[2], w[3])) << 16;
  }
}

}  // namespace opfacade
