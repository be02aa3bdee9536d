// Loads sixteen bytes of a line that may begin at any address. Two aligned vectors are loaded and shifted. At the ends of a
// line, where a vector would extend beyond the line, elements are loaded one by one. Nothing outside of the line is read.
#pragma once
#include "kernels/elementwise/shift.cuh"

namespace opfacade {

// Loads 16 bytes of elements whose stride is `step`; elements from number `left` on are zero.
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

// A chunk whose elements are loaded one by one. With 16-bit elements, each of eight words contains one until `get` packs them;
// otherwise they are packed immediately.
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

// Loads a chunk in two steps, `load` and `get`, so that a thread can have several loads in flight.
template <class Bits>
struct LineChunk {
  int left;       // elements of the line from this chunk on; 0 or less: none
  uint32_t over;  // bytes between the previous aligned address and the chunk
  bool whole;     // both vectors are inside the line
  uint32_t word[8];

  // step: stride of elements. before: number of elements of the line before the chunk. behind: number of elements from its
  // first one on.
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
