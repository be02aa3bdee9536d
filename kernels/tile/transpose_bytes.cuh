// Transpose of a byte tile by warps: fp8 wgmma needs the reduction dimension contiguous in both operands. 128 rows of 128 bytes
// become 128 rows of 128 bytes; both are panels (wgmma.cuh).
//
// The order of the reduction dimension is free if both operands share it. The other operand is an accumulator after packing:
// thread t of a quad holds, as elements 16 c + 4 t + 2 b + e of 32, columns 16 c + 8 b + 2 t + e. ldmatrix delivers the same
// order to a thread that reads byte pairs transposed, so neither side needs a shuffle between threads.
#pragma once
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/tile/panel.cuh"

namespace opfacade {

// Byte position of a row in each row of the transposed tile.
__device__ __forceinline__ int transposed_place(int row) {
  return (row & ~15) | (row >> 1 & 3) << 2 | (row >> 3 & 1) << 1 | (row & 1);
}

// Source column of a row of the transposed tile. This order makes eight rows that are written together hit all banks, and gives
// a thread's accumulators of 16 rows four contiguous columns.
__device__ __forceinline__ int transposed_column(int row) { return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1); }

// This thread's first read and write address in a tile. The address n columns (read) or rows (write) further, n a multiple of
// 16, is the XOR with n.
__device__ __forceinline__ uint32_t read_place(uint32_t tile) {
  const int lane = threadIdx.x % 32;
  return tile + lane / 8 * 1024 + panel_address(lane % 8, 0);
}
__device__ __forceinline__ uint32_t write_place(uint32_t tile) {
  const int lane = threadIdx.x % 32;
  return tile + lane / 8 % 2 * 1024 + panel_address(lane % 8, lane / 16);
}

// Loads the bytes of 32 rows and 16 columns: w[2 c + x] holds column 2 (lane / 4) + x, rows 16 c + 4 t to 16 c + 4 t + 3 of 32.
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
