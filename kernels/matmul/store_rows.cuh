// Stores 16-bit results in blocks of 32 columns, eight columns per thread of a quad.
#pragma once
#include "kernels/elementwise/shift.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

// Stores elements `first` to before `stop` of an aligned vector of 8: whole words, and single elements at odd ends.
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

// Stores rows that are not aligned to 16 bytes. Each thread stores an aligned vector, which begins with the last elements of
// the previous thread. The vector of the first thread begins with elements left over from the previous block.
struct UnalignedRow {
  uint32_t left_over[4] = {};

  // left: number of columns from `to` to the end of the row; very negative if the row is outside. begins: this is the first
  // block of the tile. ends: stores only the elements left over, no block. All threads of a warp call it.
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
