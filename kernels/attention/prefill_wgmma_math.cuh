// What a computing warpgroup does with one tile of keys: 64 rows of scores, an online softmax, weights packed in registers.
// Layout of fragments: kernels/common/wgmma.cuh.
#pragma once
#include "kernels/attention/prefill_variant.cuh"
#include "kernels/attention/prefill_wgmma_shared.cuh"
#include "kernels/common/softmax.cuh"

namespace opfacade {

// Weights are relative to a base that follows the maximum of a row only when that has grown by a factor of 2^8: most tiles
// then need no rescaling. Each row decides for itself, so that no row's bits depend on another.
constexpr float kSlack = 8.f;

struct RowScale {
  float base[2];
  float sum[2];  // this thread's part
  __device__ __forceinline__ RowScale() : base{minus_infinity(), minus_infinity()}, sum{0.f, 0.f} {}
  __device__ __forceinline__ void add(const float (&factor)[2], const float (&more)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half] = fmaf(sum[half], factor[half], more[half]);
  }
};

template <class C>
struct WgmmaRows {
  float o[C::kHeadDim / 2];
  RowScale scale;

  __device__ __forceinline__ WgmmaRows() { clear(); }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) o[i] = 0.f;
  }
  __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) o[i] *= factor[i % 4 / 2];
  }
};

// Row of the tile that accumulator element 2 * half (or + 1) belongs to.
__device__ __forceinline__ int wgmma_row(int half) {
  return (threadIdx.x - kWarpgroup) / 32 * 16 + half * 8 + threadIdx.x % 32 / 4;
}

template <class C>
__device__ __forceinline__ void issue_scores(uint32_t q, uint32_t k, float (&s)[C::kTileKv / 2]) {
  asm volatile("" : "+r"(q));  // or every descriptor is kept in registers from tile to tile
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < C::kHeadDim / 16; ++step) {
    const uint64_t a = panel_descriptor(q + step / 4 * WgmmaShared<C>::kQPanel, 1024, 0);
    const uint64_t b = panel_descriptor(k + step / 4 * WgmmaShared<C>::kKvPanel, WgmmaShared<C>::kKvGroup, 0);
    Wgmma<typename C::T, C::kTileKv>::ss(s, descriptor_at(a, step % 4 * 32), descriptor_at(b, step % 4 * 32), step > 0);
  }
  wgmma_commit();
}

template <class C>
__device__ __forceinline__ void issue_values(const uint32_t (&weights)[C::kTileKv / 4], uint32_t v, float (&o)[C::kHeadDim / 2]) {
  wgmma_fence();
  const uint64_t b = panel_descriptor(v, WgmmaShared<C>::kKvGroup, WgmmaShared<C>::kKvPanel);
#pragma unroll
  for (int step = 0; step < C::kTileKv / 16; ++step)
    Wgmma<typename C::T, C::kHeadDim>::rs(o, weights + 4 * step, descriptor_at(b, step * 2 * WgmmaShared<C>::kKvGroup));
  wgmma_commit();
}

// cap * tanh(s / cap) without the cap: its absolute error stays below 2^-21.
__device__ __forceinline__ float soft_capped(float s, float cap_in) {
  return fmaf(-2.f, reciprocal_approx(exp2_approx(s * cap_in * (2.f * kLog2E)) + 1.f), 1.f);
}

template <class C>
__device__ __forceinline__ void mask_keys(const PrefillParams& p, const Work& work, int start, float (&s)[C::kTileKv / 2]) {
  const int column = start + threadIdx.x % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const KvRange seen = row_range<C>(p, work.tile, work.range, wgmma_row(half));
    const int begin = seen.begin - column, end = seen.end - column;
#pragma unroll
    for (int i = 0; i < C::kTileKv / 4; ++i) {
      const int key = i / 2 * 8 + i % 2;
      bool hidden = key >= end;
      if constexpr (C::kWindow || C::kSplit == SplitMode::kFixed) hidden |= key < begin;
      if (hidden) s[i / 2 * 4 + half * 2 + i % 2] = minus_infinity();
    }
  }
}

// Queries of this warpgroup as the user's expression has them; each thread the words that it transforms further.
template <class C>
__device__ __forceinline__ void vary_queries(const PrefillParams& p, const Work& work, unsigned char* rows, int group) {
  for (int panel = 0; panel < WgmmaShared<C>::kPanels; ++panel) {
    uint32_t* words = reinterpret_cast<uint32_t*>(rows + panel * WgmmaShared<C>::kQPanel);
#pragma unroll 1
    for (int i = threadIdx.x % kWarpgroup; i < 64 * 32; i += kWarpgroup)
      words[i] = varied_pair<C>(words[i], variant_row<C>(p, work.tile, work.head, group * 64 + i / 32));
  }
}

// Scores as the user's expression has them.
template <class C>
__device__ __forceinline__ void vary_scores(const PrefillParams& p, const Work& work, int start, float (&s)[C::kTileKv / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto row = variant_row<C>(p, work.tile, work.head, wgmma_row(half));
#pragma unroll
    for (int i = 0; i < C::kTileKv / 4; ++i) {
      float& score = s[i / 2 * 4 + half * 2 + i % 2];
      const auto key = variant_key<C>(nullptr, start, threadIdx.x % 4 * 2, i / 2 * 8 + i % 2);
      score = Variant<C>::logits(score * p.score.cap_in, row, key);
    }
  }
}

// Where more than a range hides keys: which of this thread's elements are shown, bit i of a row for its i-th element.
using WgmmaShown = uint32_t[2];

template <class C>
__device__ __forceinline__ void find_shown(const PrefillParams& p, const Work& work, int start, WgmmaShown& shown) {
  static_assert(C::kTileKv <= 128, "a word is the elements of a row");
#pragma unroll 1
  for (int half = 1; half >= 0; --half) {
    shown[1] = shown[0];
    shown[0] = shown_elements<C>(p, work.tile, work.range, work.head, wgmma_row(half), nullptr, start);
  }
}

template <class C>
__device__ __forceinline__ void hide_keys(const WgmmaShown& shown, float (&s)[C::kTileKv / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < C::kTileKv / 4; ++i)
      if ((shown[half] >> i & 1) == 0) s[i / 2 * 4 + half * 2 + i % 2] = minus_infinity();
}

template <class C>
__device__ __forceinline__ float largest(const float (&s)[C::kTileKv / 2], int half) {
  float top = fmaxf(s[half * 2], s[half * 2 + 1]);
#pragma unroll
  for (int i = 4; i < C::kTileKv / 2; i += 4) top = fmaxf(top, fmaxf(s[i + half * 2], s[i + half * 2 + 1]));
  return quad_max(top);
}

// Lets the base of a row follow its maximum where that has grown enough. factor: what sum and output so far must be
// multiplied with, exactly 1 where the base stays. Returns whether a base of this thread has moved.
template <class C>
__device__ __forceinline__ bool follow(RowScale& scale, const float (&s)[C::kTileKv / 2], const float (&exponent)[2],
                                       float (&factor)[2]) {
  bool moved = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float top = largest<C>(s, half), old = scale.base[half];
    const bool grown = (top - old) * exponent[half] > kSlack;
    scale.base[half] = grown ? top : old;
    factor[half] = grown ? exp2_approx((old - top) * exponent[half]) : 1.f;
    moved |= grown;
  }
  return moved;
}

// Scores become packed weights relative to `base`, and their sums of this thread.
template <class C>
__device__ __forceinline__ void weigh(const float (&s)[C::kTileKv / 2], const float (&base)[2], const float (&exponent)[2],
                                      uint32_t (&weights)[C::kTileKv / 4], float (&sum)[2]) {
  const float shift[2] = {-finite_max(base[0]) * exponent[0], -finite_max(base[1]) * exponent[1]};
  float parts[2][2] = {};
#pragma unroll
  for (int i = 0; i < C::kTileKv / 4; ++i) {
    float pair[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      pair[e] = exp2_approx(fmaf(s[2 * i + e], exponent[i % 2], shift[i % 2]));
      parts[i % 2][e] += pair[e];
    }
    weights[i] = C::T::pack(pair[0], pair[1]);
  }
  sum[0] = parts[0][0] + parts[0][1];
  sum[1] = parts[1][0] + parts[1][1];
}

}  // namespace opfacade
