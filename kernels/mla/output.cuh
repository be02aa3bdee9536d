// Writes half the columns of an item's rows from accumulator fragments: final 16-bit elements, or f32 partials.
#pragma once
#include "kernels/mla/math.cuh"
#include "kernels/tile/quad.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

// The destination of a row: final 16-bit elements, an f32 partial, or nothing.
struct RowDestination {
  StoredAs final;
  int partial;
  char* dst;
};

// Two neighbouring threads exchange halves of two 8-column blocks, so that four threads write 32 or 64 contiguous bytes. One
// code path serves final rows and partials: two would be a fifth of the kernel.
template <class C>
__device__ __forceinline__ void write_row(const RowDestination& to, const MlaHalf& o) {
  const int element = to.partial ? 4 : 2;
  char* dst = to.dst + exchanged_column() * element;
#pragma unroll
  for (int block = 0; block < kMlaLatent / 16; block += 2) {
    const float* own = o[block / 16] + block % 16 * 4;
    const uint32_t first[2] = {__float_as_uint(own[0]), __float_as_uint(own[1])};
    const uint32_t second[2] = {__float_as_uint(own[4]), __float_as_uint(own[5])};
    uint32_t four[4];
    exchange_columns(first, second, four);
    const float x = __uint_as_float(four[0]), y = __uint_as_float(four[1]);
    const float z = __uint_as_float(four[2]), w = __uint_as_float(four[3]);
    store_words_4(dst, make_uint4(four[0], four[1], four[2], four[3]), to.partial);
    store_halves_4(dst, make_uint2(C::T::pack(x, y), C::T::pack(z, w)), to.final);
    dst += 16 * element;
  }
}

// Scales the first of a thread's two rows in place; no registers are free for a copy.
__device__ __forceinline__ void scale_row(MlaHalf& o, float factor) {
#pragma unroll
  for (int i = 0; i < kMlaLatent / 8; i += 4) o[0][i] *= factor, o[0][i + 1] *= factor, o[1][i] *= factor, o[1][i + 1] *= factor;
  pin(o[0]), pin(o[1]);
}

// base, sum: of all rows. The warpgroup with half 0 also writes the lse. The loop handles one row at a time and moves the
// second row into the registers of the first: an unrolled copy would be a fifth of the kernel.
template <class C>
__device__ __forceinline__ void write_half(const DecodeParams& p, const MlaWork& work, int half, const float* base,
                                           const float* sum, MlaHalf& o) {
  const GlobalRows<C> rows{p, work.item, work.partials};
  const int column = half * kMlaLatent / 2;
#pragma unroll 1
  for (int row = mla_row(), left = 2; left > 0; --left, row += 8) {
    const bool mine = row < num_rows<C>(work.item), first = mine && half == 0 && leads_row(threadIdx.x);
    float factor = reciprocal_or_zero(sum[row]);
    const float lse = row_lse(base[row], sum[row], p.score.scale);
    const bool unsplit = rows.is_unsplit();
    const int valid = mine ? row : 0;
    RowDestination to{StoredAs(mine && unsplit, p.o_aligned), mine && !unsplit, nullptr};
    if (unsplit) {
      const Sunk sunk = with_sink<C>(p, work.item, valid, lse);
      factor *= sunk.factor;
      to.dst = static_cast<char*>(p.o) + row_offset<C>(work.item, valid, p.o_row_stride, p.o_head_stride) + column * 2;
      if (first) write_lse<C>(p, work.item, row, sunk.lse);
    } else {
      const int64_t at = rows.slot_row(work.partials.index, valid);
      to.dst = reinterpret_cast<char*>(p.partial_o + at * kMlaLatent + column);
      if (first) p.partial_lse[at] = lse;
    }
    scale_row(o, factor);
    write_row<C>(to, o);
#pragma unroll
    for (int i = 0; i < kMlaLatent / 8; i += 4) {
      o[0][i] = o[0][i + 2], o[0][i + 1] = o[0][i + 3];
      o[1][i] = o[1][i + 2], o[1][i + 1] = o[1][i + 3];
    }
  }
}

}  // namespace opfacade
