// Products of a warpgroup whose A is in registers, four words of it a step; the rest as in wgmma.cuh. An older assembler reuses
// those registers while the product still reads them.
// requires: ptxas >= 13.3
#pragma once
#include "kernels/common/wgmma.cuh"

namespace opfacade {

// rs: d = a * b or d += a * b, b has a row for each of 16 terms.
template <class T, int kColumns>
struct WgmmaRegisters;

#define OPF_WGMMA_WORDS(W0, W1, W2, W3) "{" W0 ", " W1 ", " W2 ", " W3 "}"
#define OPF_WGMMA_FROM_REGISTERS(N, R, KIND, FLAGS, A0, A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13, A14, A15,  \
                                 B_LOW, B_HIGH, B_STEP, X, ...)                                                        \
  OPF_WGMMA_BEGIN(X) OPF_WGMMA_STEPS("b", B_LOW, B_HIGH, B_STEP)                                                        \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A0, A1, A2, A3), "b0", "p", FLAGS)                                        \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A4, A5, A6, A7), "b1", "q", FLAGS)                                        \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A8, A9, A10, A11), "b2", "q", FLAGS)                                      \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A12, A13, A14, A15), "b3", "q", FLAGS) "}"

#define OPF_WGMMA_REGISTERS(T, KIND, FLAGS, N, R)                                                                      \
  template <>                                                                                                          \
  struct WgmmaRegisters<T, N> {                                                                                        \
    static __device__ __forceinline__ void rs(float (&d)[R], const uint32_t* a, const Descriptors& b, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_FROM_REGISTERS, N, R, KIND, FLAGS, OPF_AFTER_##R)                              \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_SIXTEEN(OPF_WORD, a, 0), OPF_DESCRIPTORS(b), "r"(static_cast<int>(accumulate))                \
                   : "memory");                                                                                        \
    }                                                                                                                  \
  }

OPF_WGMMA_REGISTERS(F16, "k16.f32.f16.f16", ", 1, 1, 1", 64, 32);
OPF_WGMMA_REGISTERS(F16, "k16.f32.f16.f16", ", 1, 1, 1", 128, 64);
OPF_WGMMA_REGISTERS(F16, "k16.f32.f16.f16", ", 1, 1, 1", 256, 128);
OPF_WGMMA_REGISTERS(BF16, "k16.f32.bf16.bf16", ", 1, 1, 1", 64, 32);
OPF_WGMMA_REGISTERS(BF16, "k16.f32.bf16.bf16", ", 1, 1, 1", 128, 64);
OPF_WGMMA_REGISTERS(BF16, "k16.f32.bf16.bf16", ", 1, 1, 1", 256, 128);

}  // namespace opfacade
