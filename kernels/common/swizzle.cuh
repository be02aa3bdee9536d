// Rows of 16-byte chunks in shared memory, the chunk index XORed with the row: eight rows at one logical column, which is
// what ldmatrix reads, then lie in eight different groups of four banks.
#pragma once
#include <stdint.h>

namespace opfacade {

// Byte offset of a chunk; kChunks per row, 4 or a multiple of 8. Two rows of four chunks fill all banks once.
template <int kChunks>
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  static_assert(kChunks == 4 || kChunks % 8 == 0, "the XOR must stay inside the row");
  const int turn = kChunks == 4 ? row >> 1 & 3 : row & 7;
  return static_cast<uint32_t>((row * kChunks + (chunk ^ turn)) * 16);
}

}  // namespace opfacade
