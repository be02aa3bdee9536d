// XOR swizzle of 16-byte chunks in shared memory rows: eight rows at one logical column, as ldmatrix reads them, are in
// eight different groups of four banks. With rows of 64 and 128 bytes it is the swizzle of TMA.
#pragma once
#include <stdint.h>

namespace opfacade {

// The swizzle of a row: a chunk is at its index XOR this. kChunks per row is 4 or a multiple of 8; two rows of four chunks fill
// all banks once.
template <int kChunks>
constexpr int swizzle_of(int row) {
  static_assert(kChunks == 4 || kChunks % 8 == 0, "the XOR must stay inside the row");
  return kChunks == 4 ? row >> 1 & 3 : row & 7;
}
// Byte offset of a chunk.
template <int kChunks>
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  const int swizzle = swizzle_of<kChunks>(row);
  return static_cast<uint32_t>((row * kChunks + (chunk ^ swizzle)) * 16);
}
// Address of the chunk `chunks` further in the same row, from that of a chunk whose index has none of the bits of `chunks`.
__device__ __forceinline__ uint32_t chunks_on(uint32_t address, int chunks) { return address ^ chunks * 16; }

// The row and the chunk whose address a lane passes to ldmatrix.x4 or stmatrix.x4, for 16 rows and two chunks of 8 x 8 matrices.
// down_first: the second matrix is below the first one, as in an A operand; across_first: it is beside it.
struct LaneChunk {
  int row, chunk;
};
__device__ __forceinline__ LaneChunk down_first() {
  const int lane = threadIdx.x % 32;
  return {lane % 16, lane / 16};
}
__device__ __forceinline__ LaneChunk across_first() {
  const int lane = threadIdx.x % 32;
  return {lane / 16 * 8 + lane % 8, lane / 8 % 2};
}
template <int kChunks>
__device__ __forceinline__ uint32_t swizzled(const LaneChunk& at) {
  return swizzled<kChunks>(at.row, at.chunk);
}

}  // namespace opfacade
