// out[r] = scale * sum of weights[r, slot] * y[places[r, slot]] in the order of slots, + add[r]; in f32, rounded once.
// Memory-bound: a thread has 16 bytes of a row, and loads those 16 bytes of all slots before it adds. A slot without a row of y
// is skipped, because 0 times uninitialised memory may be NaN. Offsets are 64-bit.
#pragma once
#include "kernels/moe/moe_combine_params.h"
#include "kernels/moe/row_piece.cuh"

namespace opfacade {

template <class T, int kSlots, bool kWeighted, bool kAdd>
__device__ __forceinline__ void moe_combine(const MoeCombineParams& p) {
  using Piece = RowPiece<T>;
  using Bits = typename Piece::Bits;
  const int64_t row = blockIdx.x, step = int64_t{gridDim.y} * kCombineThreads * Piece::kCount;
  const int32_t* const places = p.places + row * kSlots;
  for (int64_t column = (int64_t{blockIdx.y} * kCombineThreads + threadIdx.x) * Piece::kCount; column < p.hidden; column += step) {
    const int64_t left = p.hidden - column;
    Piece part[kSlots];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int64_t at = places[slot];
      if (at >= 0 && at < p.rows * kSlots) part[slot].load(static_cast<const Bits*>(p.y) + at * p.y_row + column, left);
    }
    float sum[Piece::kCount] = {};
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int64_t at = places[slot];
      if (at < 0 || at >= p.rows * kSlots) continue;
      const float weight = kWeighted ? p.weights[row * kSlots + slot] : 1.f;
#pragma unroll
      for (int i = 0; i < Piece::kCount; ++i) sum[i] = fmaf(weight, part[slot].at(i), sum[i]);
    }
    Piece made;
    if constexpr (kAdd) made.load(static_cast<const Bits*>(p.add) + row * p.add_row + column, left);
#pragma unroll
    for (int i = 0; i < Piece::kCount; ++i) made.set(i, kAdd ? fmaf(p.scale, sum[i], made.at(i)) : p.scale * sum[i]);
    made.store(static_cast<Bits*>(p.out) + row * p.out_row + column, left);
  }
}

}  // namespace opfacade
