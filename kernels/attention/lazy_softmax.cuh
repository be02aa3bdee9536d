// An online softmax whose base moves rarely, over the fragments of a product of a warpgroup: C::kTileKv scores of each of two
// rows a thread, shared among four. Layout: kernels/ptx/wgmma.cuh.
#pragma once
#include "kernels/ptx/dtype.cuh"
#include "kernels/common/softmax.cuh"

namespace opfacade {

// A condition that hardly ever holds: what follows from it is laid out far from a loop, which then runs straight on.
__device__ __forceinline__ bool rarely(bool condition) { return __builtin_expect(condition, false); }

// Weights are relative to a base that follows the maximum of a row only when they have grown by a factor of 2^8, or together to
// 255: most tiles then need no rescaling. Each row decides for itself, so that no row's bits depend on another.
struct RowScale {
  float base[2];
  float sum[2];  // this thread's part
  __device__ __forceinline__ RowScale() : base{minus_infinity(), minus_infinity()}, sum{0.f, 0.f} {}
  __device__ __forceinline__ void add(const float (&factor)[2], const float (&more)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half] = fmaf(sum[half], factor[half], more[half]);
  }
  __device__ __forceinline__ void add(const float (&more)[2]) { sum[0] += more[0], sum[1] += more[1]; }
};

// cap * tanh(s / cap) without the cap: its absolute error stays below 2^-21.
__device__ __forceinline__ float soft_capped(float s, float cap_in) {
  return fmaf(-2.f, reciprocal_approx(exp2_approx(s * cap_in * (2.f * kLog2E)) + 1.f), 1.f);
}

// A line over the keys of a row that is added to scores: s * scale + start + rise * step, where a thread's first key of a tile has
// step 0. It goes into the exponents, so that scores stay as they are and an element takes one instruction more. Else there is none.
template <bool kAny>
struct Line {};
template <>
struct Line<true> {
  float scale[2], start[2], rise[2];
  __device__ __forceinline__ float operator()(float s, int half, int step) const {
    return fmaf(s, scale[half], fmaf(rise[half], static_cast<float>(step), start[half]));
  }
};

template <class C, bool kLine>
__device__ __forceinline__ float largest(const float (&s)[C::kTileKv / 2], int half, const Line<kLine>& line) {
  float top = minus_infinity();
#pragma unroll
  for (int i = 0; i < C::kTileKv / 2; i += 4) {
    float pair[2] = {s[i + half * 2], s[i + half * 2 + 1]};
    if constexpr (kLine) pair[0] = line(pair[0], half, i * 2), pair[1] = line(pair[1], half, i * 2 + 1);
    top = i == 0 ? fmaxf(pair[0], pair[1]) : fmaxf(top, fmaxf(pair[0], pair[1]));
  }
  return quad_max(top);
}

// Whether a row has outgrown its base, from this thread's sum of a tile's weights relative to it: the maximum itself is not found for
// that. A weight of more than 2^8 makes it so (a little less: weights are approximate), and so does a row that had no keys. So do many
// smaller ones: a row that saw few keys at first may have a base far below all that follow, and would be in doubt at each tile.
__device__ __forceinline__ bool outgrown(float sum, float base) { return !(sum <= 255.f) || base == minus_infinity(); }

// Lets the bases of rows that have outgrown them in some thread of their quad follow their maximum. factor: what sum and output so far
// must be multiplied with, exactly 1 where the base stays. Returns whether a base of this thread has moved.
template <class C, bool kLine = false>
__device__ __forceinline__ bool follow(RowScale& scale, const float (&s)[C::kTileKv / 2], const float (&exponent)[2],
                                       const bool (&has)[2], float (&factor)[2], const Line<kLine>& line = {}) {
  bool moved = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool any = quad_any(has[half]);
    const float highest = largest<C>(s, half, line), old = scale.base[half];
    const bool grown = any && highest > old;
    scale.base[half] = grown ? highest : old;
    factor[half] = grown ? exp2_approx((old - highest) * exponent[half]) : 1.f;
    moved |= grown;
  }
  return moved;
}

// Scores become packed weights relative to `base`: those of words kFrom to kTo. parts: their sums, added to what is there.
template <class C, int kFrom, int kTo, bool kLine = false>
__device__ __forceinline__ void weigh(const float (&s)[C::kTileKv / 2], const float (&base)[2], const float (&exponent)[2],
                                      uint32_t (&weights)[C::kTileKv / 4], float (&parts)[2][2], const Line<kLine>& line = {}) {
  float shift[2] = {-finite_max(base[0]) * exponent[0], -finite_max(base[1]) * exponent[1]};
  float factor[2] = {exponent[0], exponent[1]}, rise[2];
  if constexpr (kLine) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      shift[half] = (line.start[half] - finite_max(base[half])) * exponent[half];
      factor[half] *= line.scale[half];
      rise[half] = line.rise[half] * exponent[half];
    }
  }
#pragma unroll
  for (int i = kFrom; i < kTo; ++i) {
    float pair[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float at = shift[i % 2];
      if constexpr (kLine) at = fmaf(rise[i % 2], static_cast<float>(i / 2 * 8 + e), at);
      pair[e] = exp2_approx(fmaf(s[2 * i + e], factor[i % 2], at));
      parts[i % 2][e] += pair[e];
    }
    weights[i] = C::T::pack(pair[0], pair[1]);
  }
}

__device__ __forceinline__ void add_up(const float (&parts)[2][2], float (&sum)[2]) {
  sum[0] = parts[0][0] + parts[0][1];
  sum[1] = parts[1][0] + parts[1][1];
}

// All of them, and their sums of this thread.
template <class C, bool kLine = false>
__device__ __forceinline__ void weigh(const float (&s)[C::kTileKv / 2], const float (&base)[2], const float (&exponent)[2],
                                      uint32_t (&weights)[C::kTileKv / 4], float (&sum)[2], const Line<kLine>& line = {}) {
  float parts[2][2] = {};
  weigh<C, 0, C::kTileKv / 4>(s, base, exponent, weights, parts, line);
  add_up(parts, sum);
}

}  // namespace opfacade
