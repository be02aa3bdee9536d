// Online softmax whose base changes rarely, on wgmma accumulators: a thread has C::kTileKv / 4 scores of each of two rows.
// kernels/ptx/wgmma.cuh describes the layout.
#pragma once
#include "kernels/ptx/dtype.cuh"
#include "kernels/common/softmax.cuh"
#include "kernels/tile/fragment.cuh"

namespace opfacade {

// Marks a condition as unlikely, so that the compiler places its code outside the loop.
__device__ __forceinline__ bool rarely(bool condition) { return __builtin_expect(condition, false); }

// The softmax state of two rows. Weights are relative to `base`, which changes to the row maximum only if a weight exceeds 2^8
// or the sum of the weights exceeds 255, so most tiles need no rescale. Each row decides for itself; the bits of a row do not
// depend on other rows.
struct RowScale {
  float base[2];
  float sum[2];  // the sum of this thread's weights
  __device__ __forceinline__ RowScale() : base{minus_infinity(), minus_infinity()}, sum{0.f, 0.f} {}
  __device__ __forceinline__ void add(const float (&factor)[2], const float (&more)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half] = fmaf(sum[half], factor[half], more[half]);
  }
  __device__ __forceinline__ void add(const float (&more)[2]) { sum[0] += more[0], sum[1] += more[1]; }
};

// tanh(s * cap_in) without a branch; the absolute error is below 2^-21.
__device__ __forceinline__ float soft_capped(float s, float cap_in) {
  return fmaf(-2.f, reciprocal_approx(exp2_approx(s * cap_in * (2.f * kLog2E)) + 1.f), 1.f);
}

// A linear term over the keys of a row (ALiBi): score = s * scale + start + rise * step, where step is 0 at the thread's first
// key of a tile. It is added to the exponent, which costs one more instruction per element. Line<false> is empty.
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
    float pair[2] = {s[i + row_index(half, 0)], s[i + row_index(half, 1)]};
    if constexpr (kLine) pair[0] = line(pair[0], half, fragment_column(i)), pair[1] = line(pair[1], half, fragment_column(i + 1));
    top = i == 0 ? fmaxf(pair[0], pair[1]) : fmaxf(top, fmaxf(pair[0], pair[1]));
  }
  return quad_max(top);
}

// True if a row needs a new base, judged by the sum of this thread's tile weights instead of the row maximum. The sum exceeds
// 255 if a weight exceeds 2^8 (slightly less, because weights are approximate) or if many small weights add up. A row without
// keys so far also needs a base. Without the rule about the sum, a base that is far too low would be tested at every tile.
__device__ __forceinline__ bool exceeds_base(float sum, float base) { return !(sum <= 255.f) || base == minus_infinity(); }

// Changes the base of each flagged row to its maximum; the flags are combined over a quad. `factor` is the multiplier of the
// sum and of the output so far, exactly 1 if the base stays. Returns true if a base of this thread changed.
template <class C, bool kLine = false>
__device__ __forceinline__ bool update_base(RowScale& scale, const float (&s)[C::kTileKv / 2], const float (&exponent)[2],
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

// Converts scores to packed weights relative to `base`, for words kFrom to kTo. The sums of the weights are added to `parts`.
template <class C, int kFrom, int kTo, bool kLine = false>
__device__ __forceinline__ void compute_weights(const float (&s)[C::kTileKv / 2], const float (&base)[2], const float (&exponent)[2],
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
      if constexpr (kLine) at = fmaf(rise[i % 2], static_cast<float>(fragment_column(2 * i + e)), at);
      pair[e] = exp2_approx(fmaf(s[2 * i + e], factor[i % 2], at));
      parts[i % 2][e] += pair[e];
    }
    weights[i] = C::T::pack(pair[0], pair[1]);
  }
}

__device__ __forceinline__ void sum_parts(const float (&parts)[2][2], float (&sum)[2]) {
  sum[0] = parts[0][0] + parts[0][1];
  sum[1] = parts[1][0] + parts[1][1];
}

// Converts all words and adds the sums of this thread's weights.
template <class C, bool kLine = false>
__device__ __forceinline__ void compute_weights(const float (&s)[C::kTileKv / 2], const float (&base)[2], const float (&exponent)[2],
                                      uint32_t (&weights)[C::kTileKv / 4], float (&sum)[2], const Line<kLine>& line = {}) {
  float parts[2][2] = {};
  compute_weights<C, 0, C::kTileKv / 4>(s, base, exponent, weights, parts, line);
  sum_parts(parts, sum);
}

}  // namespace opfacade
