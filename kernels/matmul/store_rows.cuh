// Stores of eight columns of 16 bits by each thread of a quad, block by block of 32 columns.
#pragma once
#include "kernels/elementwise/shift.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

// Elements first to stop, 8 at most, of an aligned vector: words that are whole, and an element at each odd end.
template <int kWords>
__device__ __forceinline__ void store_part(uint16_t* to, const uint32_t (&word)[kWords], int first, int stop) {
  if (first >= stop) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first <= 2 * i && 2 * i + 1 < stop) reinterpret_cast<uint32_t*>(to)[i] = word[i];
    if (first == 2 * i + 1) to[2 * i + 1] = static_cast<uint16_t>(word[i] >> 16);
    if (stop == 2 * i + 1) to[2 * i] = static_cast<uint16_t>(word[i]);
  }
}

// Rows that are not aligned to 16 bytes. Each thread stores an aligned vector: its first elements are the last ones of the thread
// before, those of the first thread are left over from the block before.
struct UnalignedRow {
  uint32_t left_over[4] = {};

  // left: columns of the row from `to` on, far below 0 outside of the rows. All threads of a warp come here. begins: no block of
  // the tile comes before this one. ends: what is left over is stored instead of a block.
  __device__ __forceinline__ void store(uint16_t* to, const uint32_t (&word)[4], int left, bool begins, bool ends) {
    const int lane = threadIdx.x % 32, over = static_cast<int>(reinterpret_cast<uintptr_t>(to) % 16) / 2;
    uint32_t both[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t theirs = __shfl_sync(0xffffffffu, word[i], lane / 4 * 4 + (lane + 3) % 4);
      both[i] = lane % 4 == 0 ? left_over[i] : theirs, both[4 + i] = word[i], left_over[i] = theirs;
    }
    if (over == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) both[i] = word[i];
    } else {
      shift_down<4, 2>(both, 16 - 2 * over);
    }
    const int first = begins && lane % 4 == 0 ? over : 0, stop = min(ends ? (lane % 4 == 0 ? over : 0) : 8, left + over);
    if (first == 0 && stop == 8) store_vector(to - over, make_uint4(both[0], both[1], both[2], both[3]));
    else store_part(to - over, both, first, stop);
  }
};

}  // namespace opfacade
