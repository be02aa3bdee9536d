// XOR swizzle of 16-byte chunks in shared memory rows: eight rows at one logical column, as ldmatrix reads them, are in
// eight different groups of four banks.
#pragma once
#include <stdint.h>

namespace opfacade {

// Byte offset of a chunk. kChunks per row is 4 or a multiple of 8; two rows of four chunks fill all banks once.
template <int kChunks>
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  static_assert(kChunks == 4 || kChunks % 8 == 0, "the XOR must stay inside the row");
  const int swizzle = kChunks == 4 ? row >> 1 & 3 : row & 7;
  return static_cast<uint32_t>((row * kChunks + (chunk ^ swizzle)) * 16);
}

}  // namespace opfacade
