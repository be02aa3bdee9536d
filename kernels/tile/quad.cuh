// Operations of a quad: four neighbouring threads that share the rows of a fragment.
#pragma once
#include <stdint.h>

namespace opfacade {

// A thread holds two columns of each of two neighbouring 8-column blocks. Thread pairs exchange halves, so that each gets four
// contiguous columns of one block, from exchanged_column() of the first block on. kWords: words that hold two columns.
template <int kWords>
__device__ __forceinline__ void exchange_columns(const uint32_t (&first)[kWords], const uint32_t (&second)[kWords],
                                              uint32_t (&four)[2 * kWords]) {
  const bool upper = threadIdx.x % 2;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const uint32_t theirs = __shfl_xor_sync(0xffffffffu, upper ? first[i] : second[i], 1);
    four[i] = upper ? theirs : first[i];
    four[kWords + i] = upper ? second[i] : theirs;
  }
}
__device__ __forceinline__ int exchanged_column() { return threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4; }

// Transposes 4 x 4 words in a quad: word i of thread t becomes word t of thread i.
__device__ __forceinline__ void transpose_quad(uint32_t (&word)[4]) {
  const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t theirs = __shfl_xor_sync(0xffffffffu, upper ? word[i] : word[i + 2], 2);
    word[i] = upper ? theirs : word[i], word[i + 2] = upper ? word[i + 2] : theirs;
  }
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t theirs = __shfl_xor_sync(0xffffffffu, odd ? word[i] : word[i + 1], 1);
    word[i] = odd ? theirs : word[i], word[i + 1] = odd ? word[i + 1] : theirs;
  }
}

}  // namespace opfacade
