// Shifts words by bytes, for vectors that do not begin at an aligned address. kAtOnce: words per memory access; shifts are
// smaller than an access. kSize: bytes per element; shifts are multiples of it.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr uint32_t kBytesInOrder = 0x3210, kAByteMore = 0x1111;  // for __byte_perm

// Shifts words toward index 0: word[i] begins `bytes` later. The last kAtOnce words are lost.
template <int kAtOnce, int kSize, int kCount>
__device__ __forceinline__ void shift_down(uint32_t (&word)[kCount], uint32_t bytes) {
  if constexpr (kAtOnce >= 4 && kSize <= 8) {
#pragma unroll
    for (int i = 0; i + 2 < kCount; ++i) word[i] = bytes & 8 ? word[i + 2] : word[i];
  }
  if constexpr (kAtOnce >= 2 && kSize <= 4) {
#pragma unroll
    for (int i = 0; i + 1 < kCount; ++i) word[i] = bytes & 4 ? word[i + 1] : word[i];
  }
  if constexpr (kSize < 4) {
    const uint32_t order = kBytesInOrder + kAByteMore * (bytes & 3);
#pragma unroll
    for (int i = 0; i + 1 < kCount; ++i) word[i] = __byte_perm(word[i], word[i + 1], order);
  }
}

// Shifts words toward the last one: word[i] begins `bytes` earlier. The first kAtOnce words are lost.
template <int kAtOnce, int kSize, int kCount>
__device__ __forceinline__ void shift_up(uint32_t (&word)[kCount], uint32_t bytes) {
  if constexpr (kAtOnce >= 4 && kSize <= 8) {
#pragma unroll
    for (int i = kCount - 1; i >= 2; --i) word[i] = bytes & 8 ? word[i - 2] : word[i];
  }
  if constexpr (kAtOnce >= 2 && kSize <= 4) {
#pragma unroll
    for (int i = kCount - 1; i >= 1; --i) word[i] = bytes & 4 ? word[i - 1] : word[i];
  }
  if constexpr (kSize < 4) {
    const uint32_t order = kBytesInOrder + 4 * kAByteMore - kAByteMore * (bytes & 3);
#pragma unroll
    for (int i = kCount - 1; i >= 1; --i) word[i] = __byte_perm(word[i - 1], word[i], order);
  }
}

}  // namespace opfacade
