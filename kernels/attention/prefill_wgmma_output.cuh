// Writes 64 rows of a warpgroup from its fragments: final rows in 16-byte pieces, for which the four threads of a row trade
// words, or f32 partials of a split.
#pragma once
#include "kernels/attention/prefill_finish.cuh"
#include "kernels/attention/prefill_wgmma_query.cuh"
#include "kernels/common/quad.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void write_final(const PrefillParams& p, const Work& work, const float (&o)[C::kHeadDimVo / 2],
                                            const float (&lse)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = wgmma_row(half);
    const bool mine = row < work.tile.rows;
    char* dst = static_cast<char*>(p.o) + row_in_o<C>(p, work, mine ? row : 0, p.o_row_stride, p.o_head_stride);
#pragma unroll
    for (int block = 0; block < C::kHeadDimVo / 8; block += 4) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w[i] = C::Q::pack(o[(block + i) * 4 + half * 2], o[(block + i) * 4 + half * 2 + 1]);
      transpose_quad(w);
      if (mine)
        store_halves_8(dst + (block + threadIdx.x % 4) * 16, make_uint4(w[0], w[1], w[2], w[3]), p.o_aligned);
    }
    if constexpr (C::kReturnLse)
      if (mine && threadIdx.x % 4 == 0)
        p.lse[row_in_o<C>(p, work, row, p.heads, 1)] = lse[half];
  }
}

template <class C>
__device__ __forceinline__ void write_partial(const PrefillParams& p, const Work& work, const float (&o)[C::kHeadDimVo / 2],
                                              const float (&lse)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = wgmma_row(half);
    if (row >= work.tile.rows) continue;
    const int64_t at = static_cast<int64_t>(work.split) * p.total_rows * p.heads + row_in_o<C>(p, work, row, p.heads, 1);
    if (threadIdx.x % 4 == 0) p.partial_lse[at] = lse[half];
    if (lse[half] == minus_infinity()) continue;
    float* dst = p.partial_o + at * C::kHeadDimVo + threadIdx.x % 4 * 2;
#pragma unroll
    for (int block = 0; block < C::kHeadDimVo / 8; ++block)
      *reinterpret_cast<float2*>(dst + block * 8) =
          make_float2(o[block * 4 + half * 2], o[block * 4 + half * 2 + 1]);
  }
}

template <class C>
__device__ __forceinline__ void write_group(const PrefillParams& p, const Work& work, float (&o)[C::kHeadDimVo / 2],
                                            const RowScale& scale) {
  float factor[2], lse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(scale.sum[half]);
    const int head = work.head * C::kGroup + (work.tile.first + wgmma_row(half)) % C::kGroup;
    const Sunk sunk = finished<C>(p, head, row_lse(scale.base[half], sum, p.score.scale));
    factor[half] = reciprocal_or_zero(sum) * sunk.factor * value_factor<C>(p, work.head);
    lse[half] = sunk.lse;
  }
#pragma unroll
  for (int i = 0; i < C::kHeadDimVo / 2; ++i) o[i] *= factor[i % 4 / 2];
  if constexpr (C::kSplit == SplitMode::kOff) {
    write_final<C>(p, work, o, lse);
  } else {
    write_partial<C>(p, work, o, lse);
  }
}

}  // namespace opfacade
