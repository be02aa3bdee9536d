// Writes the 64 rows of a warpgroup from its fragments: final rows, or f32 partials of a split or of a cut tile. For final rows two
// threads exchange words, so that four threads write 32 contiguous bytes. With fp8 products a thread already has four contiguous
// columns (transpose_bytes.cuh).
#pragma once
#include "kernels/attention/prefill/finish.cuh"
#include "kernels/attention/prefill_sm90/query.cuh"
#include "kernels/tile/quad.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void write_final(const PrefillParams& p, const Work& work, const float (&o)[C::kHeadDimVo / 2],
                                            const float (&lse)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = wgmma_row(half);
    const bool mine = row < work.tile.rows;
    const StoredAs as(mine, p.o_aligned);
    char* dst = static_cast<char*>(p.o) + row_in_o<C>(p, work, mine ? row : 0, p.o_row_stride, p.o_head_stride);
    dst += (kFp8Products<C> ? 2 * lane_column() : exchanged_column()) * 2;
#pragma unroll
    for (int block = 0; block < C::kHeadDimVo / 8; block += 2, dst += 32) {
      const float* pair = &o[block * 4 + half * 2];
      uint32_t w[2], four[2];
      if constexpr (kFp8Products<C>) {
        four[0] = C::Q::pack(pair[0], pair[4]), four[1] = C::Q::pack(pair[1], pair[5]);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) w[i] = C::Q::pack(pair[i * 4], pair[i * 4 + 1]);
        exchange_columns({w[0]}, {w[1]}, four);
      }
      store_halves_4(dst, make_uint2(four[0], four[1]), as);
    }
    if constexpr (C::kReturnLse)
      if (mine && leads_row(threadIdx.x))
        p.lse[row_in_o<C>(p, work, row, p.heads, 1)] = lse[half];
  }
}

// The index of a row in the partials.
template <class C>
__device__ __forceinline__ int64_t partial_row(const PrefillParams& p, const Work& work, int row) {
  if constexpr (kCutsByLengths<C>) return static_cast<int64_t>(part_slot(blockIdx.x, TilePart::of(work.split).index == 0)) * p.slot_rows + row;
  return static_cast<int64_t>(work.split) * p.total_rows * p.heads + row_in_o<C>(p, work, row, p.heads, 1);
}

template <class C>
__device__ __forceinline__ void write_partial(const PrefillParams& p, const Work& work, const float (&o)[C::kHeadDimVo / 2],
                                              const float (&lse)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = wgmma_row(half);
    if (row >= work.tile.rows) continue;
    const int64_t at = partial_row<C>(p, work, row);
    if (leads_row(threadIdx.x)) p.partial_lse[at] = lse[half];
    // The merge launch never reads o of an empty partial; add_partials reads it and multiplies by 0, so it must be finite.
    if (kMergesLater<C> && lse[half] == minus_infinity()) continue;
    float* dst = p.partial_o + at * C::kHeadDimVo + lane_column() * (kFp8Products<C> ? 2 : 1);
#pragma unroll
    for (int block = 0; block < C::kHeadDimVo / 8; block += 2) {
      const float* pair = &o[block * 4 + half * 2];
      if constexpr (kFp8Products<C>) {
        *reinterpret_cast<float4*>(dst + block * 8) = make_float4(pair[0], pair[4], pair[1], pair[5]);
      } else {
        *reinterpret_cast<float2*>(dst + block * 8) = make_float2(pair[0], pair[1]);
        *reinterpret_cast<float2*>(dst + block * 8 + 8) = make_float2(pair[4], pair[5]);
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void write_group(const PrefillParams& p, const Work& work, float (&o)[C::kHeadDimVo / 2],
                                            const RowScale& scale) {
  const bool uncut = !kCutsByLengths<C> || work.split == 0;
  float factor[2], lse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(scale.sum[half]);
    const int head = work.head * C::kGroup + (work.tile.first + wgmma_row(half)) % C::kGroup;
    const Sunk sunk = finished<C>(p, head, row_lse(scale.base[half], sum, p.score.scale), uncut);
    factor[half] = reciprocal_or_zero(sum) * sunk.factor * value_factor<C>(p, work.head);
    lse[half] = sunk.lse;
  }
#pragma unroll
  for (int i = 0; i < C::kHeadDimVo / 2; ++i) o[i] *= factor[fragment_half(i)];
  if constexpr (kMergesLater<C>) {
    write_partial<C>(p, work, o, lse);
  } else if (rarely(!uncut)) {
    write_partial<C>(p, work, o, lse);
  } else {
    write_final<C>(p, work, o, lse);
  }
}

}  // namespace opfacade
