// out[i] = x[order[i] / top_k], optionally times the weight of that choice. Memory-bound: a thread moves 16 bytes, and a row
// has as many CTAs as its 16-byte chunks fill. Offsets are 64-bit. A row without a valid choice is not written.
#pragma once
#include "kernels/moe/moe_gather_params.h"
#include "kernels/moe/row_piece.cuh"

namespace opfacade {

template <class T, bool kWeighted>
__device__ __forceinline__ void moe_gather(const MoeGatherParams& p) {
  using Piece = RowPiece<T>;
  using Bits = typename Piece::Bits;
  const int64_t at = blockIdx.x, count = p.num_valid == nullptr ? p.choices : *p.num_valid;
  if (at >= count || count > p.choices) return;
  const int64_t choice = p.order[at];
  if (choice < 0 || choice >= p.choices) return;
  const Bits* const x = static_cast<const Bits*>(p.x) + choice / p.top_k * p.x_row;
  Bits* const out = static_cast<Bits*>(p.out) + at * p.out_row;
  const float weight = kWeighted ? p.weights[choice] : 1.f;
  const int64_t step = int64_t{gridDim.y} * kGatherThreads * Piece::kCount;
  for (int64_t column = (int64_t{blockIdx.y} * kGatherThreads + threadIdx.x) * Piece::kCount; column < p.hidden; column += step) {
    Piece piece;
    piece.load(x + column, p.hidden - column);
    if constexpr (kWeighted) {
#pragma unroll
      for (int i = 0; i < Piece::kCount; ++i) piece.set(i, piece.at(i) * weight);
    }
    piece.store(out + column, p.hidden - column);
  }
}

}  // namespace opfacade
