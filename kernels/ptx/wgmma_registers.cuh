// Warpgroup products whose A is in registers, four words a k-step; otherwise as in wgmma.cuh. Older ptxas reuses those
// registers while the product still reads them.
// requires: ptxas >= 13.3
#pragma once
#include "kernels/ptx/wgmma_steps.cuh"

namespace opfacade {

// rs: d = a * b or d += a * b; b has a row for each of 16 reduction elements. rs_two: two k-steps of d += a * b.
template <class T, int kColumns>
struct WgmmaRegisters;

#define OPF_WGMMA_REGISTERS(T, KIND, FLAGS, N, R)                                                                      \
  template <>                                                                                                          \
  struct WgmmaRegisters<T, N> {                                                                                        \
    static __device__ __forceinline__ void rs(float (&d)[R], const uint32_t* a, const Descriptors& b, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_FROM_REGISTERS, N, R, KIND, FLAGS, OPF_AFTER_##R)                              \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_SIXTEEN(OPF_WORD, a, 0), OPF_DESCRIPTORS(b), "r"(static_cast<int>(accumulate))                \
                   : "memory");                                                                                        \
    }                                                                                                                  \
    static __device__ __forceinline__ void rs_two(float (&d)[R], const uint32_t* a, const Descriptors& b) {             \
      asm volatile(OPF_EXPAND(OPF_WGMMA_FROM_REGISTERS_TWO, N, R, KIND, FLAGS, OPF_AFTER_##R)                          \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_EIGHT(OPF_WORD, a, 0), OPF_DESCRIPTORS(b), "r"(1) : "memory");                                \
    }                                                                                                                  \
  }

OPF_WGMMA_REGISTERS(F16, "k16.f32.f16.f16", ", 1, 1, 1", 64, 32);
OPF_WGMMA_REGISTERS(F16, "k16.f32.f16.f16", ", 1, 1, 1", 128, 64);
OPF_WGMMA_REGISTERS(F16, "k16.f32.f16.f16", ", 1, 1, 1", 256, 128);
OPF_WGMMA_REGISTERS(BF16, "k16.f32.bf16.bf16", ", 1, 1, 1", 64, 32);
OPF_WGMMA_REGISTERS(BF16, "k16.f32.bf16.bf16", ", 1, 1, 1", 128, 64);
OPF_WGMMA_REGISTERS(BF16, "k16.f32.bf16.bf16", ", 1, 1, 1", 256, 128);

}  // namespace opfacade
