// Products of a warpgroup of e4m3, 64 x N x 32, asynchronous (sm_90a). Both operands have their terms side by side in a row, a
// panel being 128 elements wide; nothing is transposed on the way. Accumulators lie as in wgmma.cuh; a[2 c + h] packs columns
// 16 c + 4 t to 16 c + 4 t + 3 of row g + 8 h.
//
// What one instruction sums, its accumulator among it, is cut to 13 bits below the exponent of the largest, each addend of its
// own: longer sums than of a tile belong into f32.
// requires: ptxas >= 13.3
#pragma once
#include "kernels/common/fp8.cuh"
#include "kernels/common/wgmma_registers.cuh"

namespace opfacade {

// ss, rs: d = a * b^T or d += a * b^T, b has a row for each column of d. X0 and so on follow the R accumulators.
template <>
struct Wgmma<E4M3, 128> {
  static __device__ __forceinline__ void ss(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" OPF_LIST_64 "}, %64, %65, p, 1, 1;\n}"
                 : OPF_OPERANDS_64(d, 0) : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)) : "memory");
  }
};

#define OPF_WGMMA_FP8_REGISTERS(N, R, X0, X1, X2, X3, X4, X5)                                                          \
  template <>                                                                                                          \
  struct WgmmaRegisters<E4M3, N> {                                                                                     \
    static __device__ __forceinline__ void rs(float (&d)[R], const uint32_t* a, uint64_t b, bool accumulate) {         \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " X5 ", 0;\n"                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" OPF_LIST_##R "}, {" X0 ", " X1 ", " X2  \
                   ", " X3 "}, " X4 ", p, 1, 1;\n}"                                                                    \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)) : "memory"); \
    }                                                                                                                  \
  }

OPF_WGMMA_FP8_REGISTERS(64, 32, "%32", "%33", "%34", "%35", "%36", "%37");
OPF_WGMMA_FP8_REGISTERS(128, 64, "%64", "%65", "%66", "%67", "%68", "%69");

}  // namespace opfacade
