// Four products of a warpgroup one after the other, 64 x N x 64, operands as in wgmma.cuh: in one statement, because the
// accumulators of each statement cost the compiler as much as all the rest of it, and are the same four times.
#pragma once
#include "kernels/common/wgmma.cuh"

namespace opfacade {

constexpr int kWgmmaSteps = 4;

// ss and st as those of Wgmma, with operands for each step.
template <class T, int kColumns>
struct WgmmaSteps;

#define OPF_WGMMA_STEP(NAME, N, R, A, B, P, TRANSPOSED)                                                     \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" OPF_LIST_##R "}, " A ", " B ", " P   \
  ", 1, 1, 0, " TRANSPOSED ";\n"
// A0, B0 and so on are the placeholders that follow the R accumulators, X that of whether there is something to add to.
#define OPF_WGMMA_STEPS(T, NAME, N, R, A0, A1, A2, A3, B0, B1, B2, B3, X)                                                \
  template <>                                                                                                            \
  struct WgmmaSteps<T, N> {                                                                                              \
    using Operands = uint64_t[kWgmmaSteps];                                                                              \
    static __device__ __forceinline__ void ss(float (&d)[R], const Operands& a, const Operands& b, bool accumulate) {    \
      asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, " X ", 0;\nsetp.ne.b32 q, 1, 0;\n"                               \
                   OPF_WGMMA_STEP(NAME, N, R, A0, B0, "p", "0") OPF_WGMMA_STEP(NAME, N, R, A1, B1, "q", "0")             \
                   OPF_WGMMA_STEP(NAME, N, R, A2, B2, "q", "0") OPF_WGMMA_STEP(NAME, N, R, A3, B3, "q", "0") "}"         \
                   : OPF_OPERANDS_##R(d, 0)                                                                              \
                   : "l"(a[0]), "l"(a[1]), "l"(a[2]), "l"(a[3]), "l"(b[0]), "l"(b[1]), "l"(b[2]), "l"(b[3]),             \
                     "r"(static_cast<int>(accumulate)) : "memory");                                                      \
    }                                                                                                                    \
    static __device__ __forceinline__ void st(float (&d)[R], const Operands& a, const Operands& b) {                     \
      asm volatile("{\n.reg .pred q;\nsetp.ne.b32 q, 1, 0;\n"                                                            \
                   OPF_WGMMA_STEP(NAME, N, R, A0, B0, "q", "1") OPF_WGMMA_STEP(NAME, N, R, A1, B1, "q", "1")             \
                   OPF_WGMMA_STEP(NAME, N, R, A2, B2, "q", "1") OPF_WGMMA_STEP(NAME, N, R, A3, B3, "q", "1") "}"         \
                   : OPF_OPERANDS_##R(d, 0)                                                                              \
                   : "l"(a[0]), "l"(a[1]), "l"(a[2]), "l"(a[3]), "l"(b[0]), "l"(b[1]), "l"(b[2]), "l"(b[3]) : "memory"); \
    }                                                                                                                    \
  }

OPF_WGMMA_STEPS(F16, "f16", 64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39", "%40");
OPF_WGMMA_STEPS(F16, "f16", 256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", "%135", "%136");
OPF_WGMMA_STEPS(BF16, "bf16", 64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39", "%40");
OPF_WGMMA_STEPS(BF16, "bf16", 256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", "%135", "%136");

}  // namespace opfacade
