// A tile of bytes transposed by warps, for products of fp8, whose operands must have their terms side by side. 128 rows of 128
// bytes become 128 rows of 128 bytes, both panels (wgmma.cuh).
//
// The order of terms is free as long as both operands have the same. The other operand is what the accumulators of a product
// become when they are packed: thread t of a quad then has, as terms 16 c + 4 t + 2 b + e of 32, columns 16 c + 8 b + 2 t + e.
// That is also what ldmatrix gives to a thread that reads pairs of bytes transposed, so neither side moves a byte further.
#pragma once
#include "kernels/common/cp_async.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/wgmma.cuh"

namespace opfacade {

// Where a row goes: the place of its byte in each row of the transposed tile.
__device__ __forceinline__ int transposed_place(int row) {
  return (row & ~15) | (row >> 1 & 3) << 2 | (row >> 3 & 1) << 1 | (row & 1);
}

// The bytes of 32 rows and 16 columns that this thread holds: w[2 c + x] are those of column 2 (lane / 4) + x, places
// 16 c + 4 t to 16 c + 4 t + 3 of the 32.
__device__ __forceinline__ void load_transposed(uint32_t (&w)[4], uint32_t tile, int rows, int columns) {
  const int lane = threadIdx.x % 32;
  uint32_t pairs[4];
  ldmatrix_x4_trans(pairs, tile + rows * 128 + lane / 8 * 1024 + panel_address(lane % 8, columns / 16));
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    w[2 * c] = __byte_perm(pairs[2 * c], pairs[2 * c + 1], 0x6420);
    w[2 * c + 1] = __byte_perm(pairs[2 * c], pairs[2 * c + 1], 0x7531);
  }
}

// Eight rows at one place would lie in half of the banks, twice each; so of eight columns the last four trade their places.
__device__ __forceinline__ void store_transposed(const uint32_t (&w)[4], uint32_t tile, int rows, int columns) {
  const int lane = threadIdx.x % 32, i = lane % 8, x = lane / 8 % 2, later = i / 4;
  const bool trades = lane >= 16;
  const uint32_t traded[4] = {trades ? w[2] : w[0], trades ? w[3] : w[1], trades ? w[0] : w[2], trades ? w[1] : w[3]};
  const int row = 2 * i + x, chunk = rows / 16 + (lane / 16 ^ later);
  stmatrix_x4(tile + columns * 128 + row / 8 * 1024 + panel_address(row % 8, chunk), traded);
}

}  // namespace opfacade
