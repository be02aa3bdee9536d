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
                                 B0, B1, B2, B3, X)                                                                    \
  "{\n.reg .pred p, q;\nsetp.ne.b32 p, " X ", 0;\nsetp.ne.b32 q, 1, 0;\n"                                              \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A0, A1, A2, A3), B0, "p", FLAGS)                                          \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A4, A5, A6, A7), B1, "q", FLAGS)                                          \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A8, A9, A10, A11), B2, "q", FLAGS)                                        \
  OPF_WGMMA_STEP(N, R, KIND, OPF_WGMMA_WORDS(A12, A13, A14, A15), B3, "q", FLAGS) "}"
#define OPF_WORD(x) "r"(x)

#define OPF_WGMMA_REGISTERS(T, KIND, FLAGS, N, R)                                                                      \
  template <>                                                                                                          \
  struct WgmmaRegisters<T, N> {                                                                                        \
    static __device__ __forceinline__ void rs(float (&d)[R], const uint32_t* a, const Descriptors& b, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_FROM_REGISTERS, N, R, KIND, FLAGS, OPF_AFTER_##R)                              \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_FOUR(OPF_WORD, a), OPF_FOUR(OPF_WORD, (a + 4)), OPF_FOUR(OPF_WORD, (a + 8)),                  \
                     OPF_FOUR(OPF_WORD, (a + 12)), OPF_FOUR(OPF_DESCRIPTOR, b.at), "r"(static_cast<int>(accumulate))   \
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
