// Writes half the columns of an item's rows from their fragments: final ones in 16-byte pieces, for which the four threads
// of a row trade words, or f32 partials of a split.
#pragma once
#include "kernels/mla/math.cuh"
#include "kernels/common/quad.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void write_final(const DecodeParams& p, const WorkItem& item, int row, int half, int column,
                                            const MlaHalf& o, float factor) {
  const bool mine = row < num_rows<C>(item);
  char* dst = static_cast<char*>(p.o) + item.request * p.o_row_stride + query_head<C>(item, mine ? row : 0) * p.o_head_stride;
#pragma unroll
  for (int block = 0; block < kMlaLatent / 16; block += 4) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &o[(block + i) * 4 + half * 2];
      w[i] = C::T::pack(pair[0] * factor, pair[1] * factor);
    }
    transpose_quad(w);
    if (mine)
      store_halves_8(dst + column * 2 + (block + threadIdx.x % 4) * 16, make_uint4(w[0], w[1], w[2], w[3]), p.o_aligned);
  }
}

template <class C>
__device__ __forceinline__ void write_partial(const DecodeParams& p, int64_t at, int half, int column, const MlaHalf& o,
                                              float factor) {
  float* dst = p.partial_o + at * kMlaLatent + column + threadIdx.x % 4 * 2;
#pragma unroll
  for (int block = 0; block < kMlaLatent / 16; ++block)
    *reinterpret_cast<float2*>(dst + block * 8) =
        make_float2(o[block * 4 + half * 2] * factor, o[block * 4 + half * 2 + 1] * factor);
}

// sum: of the whole rows. The first group also writes lse.
template <class C>
__device__ __forceinline__ void write_half(const DecodeParams& p, const MlaWork& work, int group, const RowScale& scale,
                                           const float (&sum)[2], const MlaHalf& o) {
  const GlobalRows<C> rows{p, work.item, work.parts};
  const int column = group * kMlaLatent / 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = mla_row() + half * 8;
    const bool mine = row < num_rows<C>(work.item), first = mine && group == 0 && threadIdx.x % 4 == 0;
    const float factor = reciprocal_or_zero(sum[half]), lse = row_lse(scale.base[half], sum[half], p.score.scale);
    if (rows.whole()) {
      const Sunk sunk = with_sink<C>(p, work.item, mine ? row : 0, lse);
      write_final<C>(p, work.item, row, half, column, o, factor * sunk.factor);
      if (first) write_lse<C>(p, work.item, row, sunk.lse);
    } else if (mine) {
      const int64_t at = rows.slot_row(work.parts.part, row);
      write_partial<C>(p, at, half, column, o, factor);
      if (first) p.partial_lse[at] = lse;
    }
  }
}

}  // namespace opfacade
