// Writes half the columns of an item's rows from their fragments: final ones in 16-byte pieces, for which the four threads
// of a row trade words, or f32 partials of a split.
#pragma once
#include "kernels/mla/math.cuh"
#include "kernels/common/quad.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void write_final(const DecodeParams& p, const WorkItem& item, int row, int column, const MlaHalf& o,
                                            float factor) {
  const bool mine = row < num_rows<C>(item);
  char* dst = static_cast<char*>(p.o) + item.request * p.o_row_stride + query_head<C>(item, mine ? row : 0) * p.o_head_stride;
#pragma unroll
  for (int block = 0; block < kMlaLatent / 16; block += 4) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = C::T::pack(o[(block + i) * 4] * factor, o[(block + i) * 4 + 1] * factor);
    }
    transpose_quad(w);
    if (mine)
      store_halves_8(dst + column * 2 + (block + threadIdx.x % 4) * 16, make_uint4(w[0], w[1], w[2], w[3]), p.o_aligned);
  }
}

// Two neighbouring threads trade halves of two blocks of eight columns, so that the four of a row write 64 bytes at once.
template <class C>
__device__ __forceinline__ void write_partial(const DecodeParams& p, int64_t at, bool mine, int column, const MlaHalf& o,
                                              float factor) {
  const bool upper = threadIdx.x % 2;
  float* dst = p.partial_o + at * kMlaLatent + column + (upper ? 8 : 0) + threadIdx.x % 4 / 2 * 4;
#pragma unroll
  for (int block = 0; block < kMlaLatent / 16; block += 2) {
    const float *even = o + block * 4, *odd = even + 4;
    const float x = __shfl_xor_sync(0xffffffffu, upper ? even[0] : odd[0], 1) * factor;
    const float y = __shfl_xor_sync(0xffffffffu, upper ? even[1] : odd[1], 1) * factor;
    const float2 own = upper ? make_float2(odd[0] * factor, odd[1] * factor) : make_float2(even[0] * factor, even[1] * factor);
    const float4 four = upper ? make_float4(x, y, own.x, own.y) : make_float4(own.x, own.y, x, y);
    if (mine) *reinterpret_cast<float4*>(dst + block * 8) = four;
  }
}

// base, sum: of the whole rows. The first group also writes lse. One row after the other, the second moved to where the first
// was: with a copy of the code for each it would be a fifth of the kernel.
template <class C>
__device__ __forceinline__ void write_half(const DecodeParams& p, const MlaWork& work, int group, float (&base)[2],
                                           float (&sum)[2], MlaHalf& o) {
  const GlobalRows<C> rows{p, work.item, work.parts};
  const int column = group * kMlaLatent / 2;
#pragma unroll 1
  for (int row = mla_row(), left = 2; left > 0; --left, row += 8) {
    const bool mine = row < num_rows<C>(work.item), first = mine && group == 0 && threadIdx.x % 4 == 0;
    const float factor = reciprocal_or_zero(sum[0]), lse = row_lse(base[0], sum[0], p.score.scale);
    if (rows.whole()) {
      const Sunk sunk = with_sink<C>(p, work.item, mine ? row : 0, lse);
      write_final<C>(p, work.item, row, column, o, factor * sunk.factor);
      if (first) write_lse<C>(p, work.item, row, sunk.lse);
    } else {
      const int64_t at = rows.slot_row(work.parts.part, mine ? row : 0);
      write_partial<C>(p, at, mine, column, o, factor);
      if (first) p.partial_lse[at] = lse;
    }
    base[0] = base[1], sum[0] = sum[1];
#pragma unroll
    for (int i = 0; i < kMlaLatent / 4; i += 4) o[i] = o[i + 2], o[i + 1] = o[i + 3];
  }
}

}  // namespace opfacade
