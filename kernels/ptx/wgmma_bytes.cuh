// Asynchronous warpgroup products of 8-bit floats in shared memory, 64 x N x 32 (sm_90a). The reduction dimension is contiguous
// in both operands, with panels 128 elements wide; the hardware transposes nothing. Accumulators as in wgmma.cuh.
//
// The hardware truncates each addend of an instruction, the accumulator included, to 13 bits below the largest exponent. Sums
// over more than one tile belong in f32 registers.
#pragma once
#include "kernels/ptx/fp8.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace opfacade {

// One k-step, number `step` of a panel: d = a * b^T or d += a * b^T.
template <class T, int kColumns>
struct WgmmaOneStep;

#define OPF_WGMMA_SHARED_ONE(N, R, KIND, P, FLAGS, A_LOW, A_HIGH, B_LOW, B_HIGH, X, ...)                       \
  "{\n.reg .b64 a, b;\n.reg .pred p;\nsetp.ne.b32 p, " X ", 0;\nmov.b64 a, {" A_LOW ", " A_HIGH "};\n"        \
  "mov.b64 b, {" B_LOW ", " B_HIGH "};\n" OPF_WGMMA_STEP(N, R, KIND, "a", "b", P, FLAGS) "}"

// ss: d = a * b^T or d += a * b^T, four k-steps; b has a row for each column of d.
#define OPF_WGMMA_BYTES(T, KIND, N, R)                                                                                  \
  template <>                                                                                                          \
  struct Wgmma<T, N> {                                                                                                 \
    static __device__ __forceinline__ void ss(float (&d)[R], const Descriptors& a, const Descriptors& b, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_SHARED, N, R, "k32.f32." KIND, "p", ", 1, 1", OPF_AFTER_##R)                   \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_DESCRIPTORS(a), OPF_DESCRIPTORS(b), "r"(static_cast<int>(accumulate))                         \
                   : "memory");                                                                                        \
    }                                                                                                                  \
  };                                                                                                                   \
  template <>                                                                                                          \
  struct WgmmaOneStep<T, N> {                                                                                          \
    static __device__ __forceinline__ void ss(float (&d)[R], const Descriptors& a, const Descriptors& b, int step, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_SHARED_ONE, N, R, "k32.f32." KIND, "p", ", 1, 1", OPF_AFTER_##R)               \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : "r"(a.low + step * a.step), "r"(a.high), "r"(b.low + step * b.step), "r"(b.high),                 \
                     "r"(static_cast<int>(accumulate))                                                                 \
                   : "memory");                                                                                        \
    }                                                                                                                  \
  }

OPF_WGMMA_BYTES(E4M3, "e4m3.e4m3", 32, 16);
OPF_WGMMA_BYTES(E4M3, "e4m3.e4m3", 64, 32);
OPF_WGMMA_BYTES(E4M3, "e4m3.e4m3", 128, 64);
OPF_WGMMA_BYTES(E5M2, "e5m2.e5m2", 32, 16);
OPF_WGMMA_BYTES(E5M2, "e5m2.e5m2", 64, 32);
OPF_WGMMA_BYTES(E5M2, "e5m2.e5m2", 128, 64);

}  // namespace opfacade
