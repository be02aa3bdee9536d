// Tiles whose rows of x lie on N of wgmma, and whose columns of the product lie on M: a tile has up to kRows rows, and takes the
// narrowest product that holds those that it has. Few rows of x are loaded beside many of the weight. The bits are those of the other
// order of operands (bench/matmul_probes.py).
#pragma once
#include "kernels/matmul/finish.cuh"

namespace opfacade {

// The sums of one thread (see wgmma.cuh) are two rows of x in a column of the product, and in the eighth column from there. Lanes of
// neighbouring columns exchange one each, so that each of them has two columns of a row.
template <class C>
__device__ __forceinline__ void finish_swapped(const MatmulParams& p, const Tile& tile, int group, const float (&sums)[C::kRows / 2]) {
  using Program = typename C::Program;
  const int lane = threadIdx.x % 32, odd = lane / 4 % 2;
  const int first = tile.column + group * 64 + threadIdx.x % kWarpgroup / 32 * 16 + lane / 8 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = first + 8 * half, left = p.columns - column;
    typename Program::Columns columns;
    Program::load_columns(columns, p, tile.weight, column, left);
#pragma unroll
    for (int block = 0; block < C::kRows / 8; ++block) {
      if (tile.row + 8 * block >= tile.end) break;
      const float own[2] = {sums[4 * block + 2 * half], sums[4 * block + 2 * half + 1]};
      const float theirs = __shfl_xor_sync(0xffffffffu, odd ? own[0] : own[1], 4);
      const int row = tile.row + 8 * block + lane % 4 * 2 + odd;
      if (left <= 0 || !is_row<C>(p, tile, row)) continue;
      float result[2];
      Program::values(result, p, columns, tile.batch, row, column, left, odd ? theirs : own[0], odd ? own[1] : theirs);
      Program::store(p, tile.batch, row, column, left, result);
    }
  }
}

}  // namespace opfacade
