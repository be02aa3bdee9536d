// Asynchronous warpgroup products of signed 8-bit integers in shared memory, 64 x N x 32, with sums in 32 bits (sm_90a). Otherwise as
// in wgmma_bytes.cuh.
#pragma once
#include "kernels/ptx/wgmma.cuh"

namespace opfacade {

#define OPF_I4(d, i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define OPF_I16(d, i) OPF_I4(d, i), OPF_I4(d, i + 4), OPF_I4(d, i + 8), OPF_I4(d, i + 12)
#define OPF_INTEGERS_16(d, i) OPF_I16(d, i)
#define OPF_INTEGERS_32(d, i) OPF_I16(d, i), OPF_I16(d, i + 16)
#define OPF_INTEGERS_64(d, i) OPF_INTEGERS_32(d, i), OPF_INTEGERS_32(d, i + 32)
#define OPF_INTEGERS_96(d, i) OPF_INTEGERS_64(d, i), OPF_INTEGERS_32(d, i + 64)
#define OPF_INTEGERS_128(d, i) OPF_INTEGERS_64(d, i), OPF_INTEGERS_64(d, i + 64)

// multiply: d = a * b^T or d += a * b^T, four k-steps; b has a row for each column of d.
template <int kColumns>
struct WgmmaIntegers;

#define OPF_WGMMA_INTEGERS(N, R)                                                                                        \
  template <>                                                                                                          \
  struct WgmmaIntegers<N> {                                                                                            \
    static __device__ __forceinline__ void multiply(int32_t (&d)[R], const Descriptors& a, const Descriptors& b, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_SHARED, N, R, "k32.s32.s8.s8", "p", "", OPF_AFTER_##R)                          \
                   : OPF_INTEGERS_##R(d, 0)                                                                            \
                   : OPF_DESCRIPTORS(a), OPF_DESCRIPTORS(b), "r"(static_cast<int>(accumulate))                         \
                   : "memory");                                                                                        \
    }                                                                                                                  \
  }

OPF_WGMMA_INTEGERS(32, 16);
OPF_WGMMA_INTEGERS(64, 32);
OPF_WGMMA_INTEGERS(128, 64);
OPF_WGMMA_INTEGERS(192, 96);
OPF_WGMMA_INTEGERS(256, 128);

// Like pin in wgmma.cuh, for integers.
template <int kCount>
__device__ __forceinline__ void pin(int32_t (&x)[kCount]) {
  static_assert(kCount % 16 == 0, "whole statements");
#pragma unroll
  for (int i = 0; i < kCount; i += 16) asm volatile("" : OPF_SIXTEEN(OPF_CHANGED_WORD, x, i)::"memory");
}

}  // namespace opfacade
