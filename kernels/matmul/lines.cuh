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

// Elements of a chunk, loaded one by one: a word has one, where there are eight of them, or they are packed at once.
template <class Bits>
struct EdgeChunk {
  static constexpr bool kApart = sizeof(Bits) == 2;

  static __device__ __forceinline__ void load(uint32_t (&word)[8], const Bits* from, int64_t step, int left) {
    if constexpr (kApart) {
#pragma unroll
      for (int i = 0; i < 8; ++i) word[i] = i < left ? from[i * step] : 0;
    } else {
      const uint4 packed = chunk_of(from, step, left);
      word[0] = packed.x, word[1] = packed.y, word[2] = packed.z, word[3] = packed.w;
    }
  }
  static __device__ __forceinline__ uint4 get(const uint32_t (&word)[8]) {
    if constexpr (!kApart) return make_uint4(word[0], word[1], word[2], word[3]);
    return make_uint4(word[0] | word[1] << 16, word[2] | word[3] << 16, word[4] | word[5] << 16, word[6] | word[7] << 16);
  }
};

// A chunk in two steps, so that a thread has several loads under way before it waits for one.
template <class Bits>
struct LineChunk {
  int left;       // elements of the line from here on; 0 and less: none
  uint32_t over;  // bytes from an aligned address to the chunk
  bool whole;     // the vectors lie in the line
  uint32_t word[8];

  // step: from one element to the next; before: elements of the line in front of `from`.
  __device__ __forceinline__ void load(const Bits* at, int64_t step, int64_t before, int behind) {
    left = behind, over = reinterpret_cast<uintptr_t>(at) % 16;
    const int64_t size = sizeof(Bits), bytes = left * size;
    whole = step == 1 && over <= before * size && (over == 0 ? 16 : 32 - static_cast<int>(over)) <= bytes;
    if (!whole) return EdgeChunk<Bits>::load(word, at, step, left);
    const uint4* vector = reinterpret_cast<const uint4*>(reinterpret_cast<uintptr_t>(at) - over);
    const uint4 first = vector[0], second = over != 0 ? vector[1] : make_uint4(0, 0, 0, 0);
    word[0] = first.x, word[1] = first.y, word[2] = first.z, word[3] = first.w;
    word[4] = second.x, word[5] = second.y, word[6] = second.z, word[7] = second.w;
  }
  __device__ __forceinline__ uint4 get() {
    if (!whole) return EdgeChunk<Bits>::get(word);
    shift_down<4, sizeof(Bits)>(word, over);
    return make_uint4(word[0], word[1], word[2], word[3]);
  }
};

}  // namespace opfacade
