// Tiles with rows of x on N of wgmma and columns of the product on M. A tile has up to kRows rows, and uses the narrowest wgmma
// that covers its rows. So few rows of x are loaded together with many columns of the weight. Bits are the same as with the
// operands in the other order (bench/matmul_probes.py).
#pragma once
#include "kernels/matmul/finish.cuh"

namespace opfacade {

// Each thread has sums (see wgmma.cuh) of two rows of x, in one column of the product and in the eighth column after it. Lanes
// of adjacent columns exchange a sum, so that each lane has two adjacent columns of a row.
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
