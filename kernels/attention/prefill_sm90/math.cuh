// Tile math of a consumer warpgroup: 64 rows of scores, online softmax, weights packed in registers. Fragment layout:
// kernels/tile/fragment.cuh.
#pragma once
#include "kernels/attention/prefill/variant.cuh"
#include "kernels/attention/prefill_sm90/shared_storage.cuh"
#include "kernels/attention/lazy_softmax.cuh"
#include "kernels/tile/fragment.cuh"

namespace opfacade {

template <class C>
struct WgmmaRows {
  float o[C::kHeadDimVo / 2];
  RowScale scale;

  __device__ __forceinline__ WgmmaRows() { clear(); }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < C::kHeadDimVo / 2; ++i) o[i] = 0.f;
  }
  __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < C::kHeadDimVo / 2; ++i) o[i] *= factor[fragment_half(i)];
  }
};

// The row of the row tile to which accumulator elements 2 * half and 2 * half + 1 of this thread belong.
__device__ __forceinline__ int wgmma_row(int half) {
  return (threadIdx.x - kWarpgroup) / 32 * 16 + half * 8 + lane_row();
}

template <class C>
__device__ __forceinline__ void issue_scores(uint32_t q, uint32_t k, float (&s)[C::kTileKv / 2]) {
  asm volatile("" : "+r"(q));  // otherwise every descriptor stays in registers across tiles
  wgmma_fence();
#pragma unroll
  for (int panel = 0; panel < WgmmaShared<C>::kPanels; ++panel) {
    const Descriptors a = row_steps(q + panel * WgmmaShared<C>::kQPanel);
    const Descriptors b = row_steps(k + panel * WgmmaShared<C>::kKvPanel, WgmmaShared<C>::kKvGroup);
    Wgmma<typename C::T, C::kTileKv>::ss(s, a, b, panel > 0);
  }
  wgmma_commit();
}

template <class C>
__device__ __forceinline__ void issue_values(const uint32_t (&weights)[C::kTileKv / 4], uint32_t v, float (&o)[C::kHeadDimVo / 2]) {
  wgmma_fence();
  constexpr int kGroup = WgmmaShared<C>::kKvGroup;
#pragma unroll
  for (int key = 0; key < C::kTileKv; key += 64) {
    const Descriptors b = group_steps(v + key / 8 * kGroup, kGroup, WgmmaShared<C>::kKvPanel);
    using Product = WgmmaRegisters<typename C::T, C::kHeadDimVo>;
    if (key + 64 <= C::kTileKv) Product::rs(o, weights + key / 4, b, true); else Product::rs_two(o, weights + key / 4, b);
  }
  wgmma_commit();
}

// The same without overlap. It is a loop because products take long to compile.
template <class C>
__device__ __forceinline__ void add_values(uint32_t (&weights)[C::kTileKv / 4], uint32_t v, float (&o)[C::kHeadDimVo / 2]) {
  constexpr int kGroup = WgmmaShared<C>::kKvGroup, kAtOnce = C::kTileKv % 64 == 0 ? 64 : 32;
#pragma unroll 1
  for (int key = 0; key < C::kTileKv; key += kAtOnce, v += kAtOnce / 8 * kGroup) {
    wgmma_fence();
    const Descriptors b = group_steps(v, kGroup, WgmmaShared<C>::kKvPanel);
    using Product = WgmmaRegisters<typename C::T, C::kHeadDimVo>;
    if constexpr (kAtOnce == 64) Product::rs(o, weights, b, true); else Product::rs_two(o, weights, b);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = kAtOnce / 4; i < C::kTileKv / 4; ++i) weights[i - kAtOnce / 4] = weights[i];
  }
  pin(o);
}

template <class C>
__device__ __forceinline__ void mask_keys(const PrefillParams& p, const Work& work, int start, float (&s)[C::kTileKv / 2]) {
  const int column = start + lane_column();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const KvRange seen = row_range<C>(p, work.tile, work.range, wgmma_row(half));
    const int begin = seen.begin - column, end = seen.end - column;
#pragma unroll
    for (int i = 0; i < C::kTileKv / 4; ++i) {
      const int key = row_column(i);
      bool hidden = key >= end;
      if constexpr (C::kWindow || C::kSplit == SplitMode::kFixed) hidden |= key < begin;
      if (hidden) s[row_index(half, i)] = minus_infinity();
    }
  }
}

// Applies the query expression to the rows of this warpgroup. A thread handles the same words as in transform_queries, so no
// barrier is needed between them.
template <class C>
__device__ __forceinline__ void vary_queries(const PrefillParams& p, const Work& work, unsigned char* rows, int group) {
  for (int panel = 0; panel < WgmmaShared<C>::kPanels; ++panel) {
    uint32_t* words = reinterpret_cast<uint32_t*>(rows + panel * WgmmaShared<C>::kQPanel);
#pragma unroll 1
    for (int i = threadIdx.x % kWarpgroup; i < 64 * 32; i += kWarpgroup)
      words[i] = varied_pair<C>(words[i], variant_row<C>(p, work.tile, work.head, group * 64 + i / 32));
  }
}

// The values of a row to which expressions refer; unused without a logits expression.
template <class C>
using VariantRows = VariantRow<Variant<C>>[2];
template <class C>
__device__ __forceinline__ void variant_rows(const PrefillParams& p, const Work& work, VariantRows<C>& rows) {
  if constexpr (Variant<C>::kLogits) {
#pragma unroll
    for (int half = 0; half < 2; ++half) rows[half] = variant_row<C>(p, work.tile, work.head, wgmma_row(half));
  }
}

// The linear term of a logits expression that is linear in the key position; the softmax adds it to the exponents.
template <class C>
using ScoreLine = Line<Variant<C>::kLine>;
template <class C>
__device__ __forceinline__ void score_line(const PrefillParams& p, const VariantRows<C>& rows, int start, ScoreLine<C>& line) {
  if constexpr (Variant<C>::kLine) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      line.scale[half] = p.score.cap_in;
      line.start[half] = Variant<C>::start(rows[half], variant_key<C>(nullptr, start, lane_column(), 0));
      line.rise[half] = Variant<C>::rise(rows[half]);
    }
  }
}
// Rows with a large slope. If the linear term exceeds 2^20, its rounding error changes an exponent visibly: the weight at the
// maximum would not be 1, and the weight of a masked key not 0. Common models have no such slopes. A row has a large slope in
// all tiles of a work or in none, because the term is tested at the first and the last key tile.
template <bool kAny>
struct LargeSlope {
  static constexpr bool any = false;
};
template <>
struct LargeSlope<true> {
  bool row[2] = {false, false};
  bool any = false;  // any row of this warp
};
template <class C>
using LargeSlopeRows = LargeSlope<Variant<C>::kLine>;

template <class C>
__device__ __forceinline__ void find_large_slopes(const PrefillParams& p, const Work& work, LargeSlopeRows<C>& large_slope) {
  if constexpr (Variant<C>::kLine) {
    VariantRows<C> rows;
    variant_rows<C>(p, work, rows);
    large_slope.row[0] = large_slope.row[1] = false;
#pragma unroll 1
    for (int end = 0; end < 2; ++end) {
      ScoreLine<C> line;
      score_line<C>(p, rows, work.last - end * (work.tiles - 1) * C::kTileKv, line);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        large_slope.row[half] |= !(fabsf(line.start[half]) + C::kTileKv * fabsf(line.rise[half]) <= 0x1p20f);
    }
    large_slope.any = __any_sync(0xffffffffu, large_slope.row[0] || large_slope.row[1]);
  }
}
// For rows with a large slope, the term is added to the scores and removed from `line`; masked scores stay -inf. Other rows are
// unchanged.
template <class C>
__device__ __forceinline__ void apply_line(const LargeSlopeRows<C>& large_slope, ScoreLine<C>& line, float (&s)[C::kTileKv / 2]) {
  if constexpr (Variant<C>::kLine) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < C::kTileKv / 4; ++i) {
        float& score = s[row_index(half, i)];
        if (large_slope.row[half] && score > minus_infinity()) score = line(score, half, row_column(i));
      }
      if (large_slope.row[half]) line.scale[half] = 1.f, line.start[half] = line.rise[half] = 0.f;
    }
  }
}

// Applies the logits expression.
template <class C>
__device__ __forceinline__ void vary_scores(const PrefillParams& p, const VariantRows<C>& rows, int start,
                                            float (&s)[C::kTileKv / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < C::kTileKv / 4; ++i) {
      float& score = s[row_index(half, i)];
      const auto key = variant_key<C>(nullptr, start, lane_column(), row_column(i));
      score = Variant<C>::logits(score * p.score.cap_in, rows[half], key);
    }
  }
}

// If a packed mask or a variant's mask hides keys too (kHidesMore): bit i of a word tells whether element i of this thread's
// row is visible.
using WgmmaShown = uint32_t[2];

template <class C>
__device__ __forceinline__ void find_shown(const PrefillParams& p, const Work& work, int start, WgmmaShown& shown) {
  static_assert(C::kTileKv <= 128, "a word is the elements of a row");
  // `shown` is shifted instead of indexed, so that it stays in registers.
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
      if ((shown[half] >> i & 1) == 0) s[row_index(half, i)] = minus_infinity();
}

}  // namespace opfacade
