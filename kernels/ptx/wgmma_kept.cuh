// Warpgroup products whose A stays in registers until they end (keep_alive). Nothing writes those registers while a product is in
// flight, so any ptxas version is correct. Otherwise as in wgmma.cuh.
#pragma once
#include "kernels/ptx/wgmma_few.cuh"
#include "kernels/ptx/wgmma_steps.cuh"

namespace opfacade {

// rs: d = a * b^T or d += a * b^T; b has a row for each column of d. step: the same for k-step `step` of a panel of b.
template <class T, int kColumns>
struct WgmmaKept;

#define OPF_WGMMA_KEPT(T, KIND, N, R)                                                                                  \
  template <>                                                                                                          \
  struct WgmmaKept<T, N> {                                                                                             \
    static __device__ __forceinline__ void rs(float (&d)[R], const uint32_t* a, const Descriptors& b, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_FROM_REGISTERS, N, R, KIND, ", 1, 1, 0", OPF_AFTER_##R)                        \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_SIXTEEN(OPF_WORD, a, 0), OPF_DESCRIPTORS(b), "r"(static_cast<int>(accumulate))                \
                   : "memory");                                                                                        \
    }                                                                                                                  \
    static __device__ __forceinline__ void step(float (&d)[R], const uint32_t* a, const Descriptors& b, int step, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_FROM_REGISTERS_ONE, N, R, KIND, ", 1, 1, 0", OPF_AFTER_##R)                    \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_R4_WORDS(a), "r"(b.low + step * b.step), "r"(b.high), "r"(static_cast<int>(accumulate))       \
                   : "memory");                                                                                        \
    }                                                                                                                  \
  }

#define OPF_WGMMA_KEPT_WIDTHS(T, KIND) \
  OPF_WGMMA_KEPT(T, KIND, 8, 4);       \
  OPF_WGMMA_KEPT(T, KIND, 16, 8);      \
  OPF_WGMMA_KEPT(T, KIND, 32, 16);     \
  OPF_WGMMA_KEPT(T, KIND, 64, 32);     \
  OPF_WGMMA_KEPT(T, KIND, 128, 64);    \
  OPF_WGMMA_KEPT(T, KIND, 256, 128)

OPF_WGMMA_KEPT_WIDTHS(F16, "k16.f32.f16.f16");
OPF_WGMMA_KEPT_WIDTHS(BF16, "k16.f32.bf16.bf16");

}  // namespace opfacade
