// Sixteen bytes of a line of elements that begins anywhere in memory. Memory is read as two aligned vectors, which are shifted; at
// the ends of a line, where one of them would not lie in it, elements are read one by one. Nothing outside of the line is read.
#pragma once
#include "kernels/elementwise/shift.cuh"

namespace opfacade {

// Elements of 16 bytes, `step` apart, zeros behind the first `left`.
template <class Bits>
__device__ __forceinline__ uint4 chunk_of(const Bits* from, int64_t step, int left) {
  constexpr int kEach = 4 / sizeof(Bits);
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t part[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) part[j] = kEach * i + j < left ? from[(kEach * i + j) * step] : 0;
    word[i] = part[0];
#pragma unroll
    for (int j = 1; j < kEach; ++j) word[i] |= part[j] << j * 8 * sizeof(Bits);
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// A chunk in two steps, so that a thread has several loads under way before it waits for one.
template <class Bits>
struct LineChunk {
  const Bits* from;
  int left;       // elements of the line from here on; 0 and less: none
  uint32_t over;  // bytes from an aligned address to `from`
  bool whole;     // the vectors lie in the line
  uint4 first, second;

  // step: from one element to the next; before: elements of the line in front of `from`.
  __device__ __forceinline__ void load(const Bits* at, int64_t step, int64_t before, int behind) {
    from = at, left = behind, over = reinterpret_cast<uintptr_t>(at) % 16;
    const int64_t size = sizeof(Bits), bytes = left * size;
    whole = step == 1 && over <= before * size && (over == 0 ? 16 : 32 - static_cast<int>(over)) <= bytes;
    first = second = make_uint4(0, 0, 0, 0);
    const uint4* vector = reinterpret_cast<const uint4*>(reinterpret_cast<uintptr_t>(at) - over);
    if (whole) first = vector[0];
    if (whole && over != 0) second = vector[1];
  }
  __device__ __forceinline__ uint4 get(int64_t step) const {
    if (!whole) return chunk_of(from, step, left);
    uint32_t word[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
    shift_down<4, sizeof(Bits)>(word, over);
    return make_uint4(word[0], word[1], word[2], word[3]);
  }
};

}  // namespace opfacade
