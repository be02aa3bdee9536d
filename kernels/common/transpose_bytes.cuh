// A tile of bytes transposed by warps, for products of fp8, whose operands must have their terms side by side. 128 rows of 128
// bytes become 128 rows of 128 bytes, both panels (wgmma.cuh).
//
// The order of terms is free as long as both operands have the same. The other operand is what the accumulators of a product
// become when they are packed: thread t of a quad then has, as terms 16 c + 4 t + 2 b + e of 32, columns 16 c + 8 b + 2 t + e.
// That is also what ldmatrix gives to a thread that reads pairs of bytes transposed, so neither side moves a byte further.
#pragma once
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace opfacade {

// Where a row goes: the place of its byte in each row of the transposed tile.
__device__ __forceinline__ int transposed_place(int row) {
  return (row & ~15) | (row >> 1 & 3) << 2 | (row >> 3 & 1) << 1 | (row & 1);
}

// Which column of the tile a row of the transposed one is: the order of those is free too, and in this one eight rows that are written
// at once lie in all banks, and a thread's accumulators of 16 rows are four columns side by side.
__device__ __forceinline__ int transposed_column(int row) { return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1); }

// Where this thread begins to read a tile, and to write a transposed one. From there 16 columns, or rows, on is `exclusive or` 16.
__device__ __forceinline__ uint32_t read_place(uint32_t tile) {
  const int lane = threadIdx.x % 32;
  return tile + lane / 8 * 1024 + panel_address(lane % 8, 0);
}
__device__ __forceinline__ uint32_t write_place(uint32_t tile) {
  const int lane = threadIdx.x % 32;
  return tile + lane / 8 % 2 * 1024 + panel_address(lane % 8, lane / 16);
}

// The bytes of 32 rows and 16 columns that this thread holds: w[2 c + x] are those of column 2 (lane / 4) + x, places
// 16 c + 4 t to 16 c + 4 t + 3 of the 32.
__device__ __forceinline__ void load_transposed(uint32_t (&w)[4], uint32_t place, int rows, int columns) {
  uint32_t pairs[4];
  ldmatrix_x4_trans(pairs, (place ^ columns) + rows * 128);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    w[2 * c] = __byte_perm(pairs[2 * c], pairs[2 * c + 1], 0x6420);
    w[2 * c + 1] = __byte_perm(pairs[2 * c], pairs[2 * c + 1], 0x7531);
  }
}

__device__ __forceinline__ void store_transposed(const uint32_t (&w)[4], uint32_t place, int rows, int columns) {
  stmatrix_x4((place ^ rows) + columns * 128, w);
}

}  // namespace opfacade
