// Products of a warpgroup whose A is in registers; the rest as in wgmma.cuh. An older assembler reuses those registers while
// the product still reads them.
// requires: ptxas >= 13.3
#pragma once
#include "kernels/common/wgmma.cuh"

namespace opfacade {

// rs: d += a * b, b has a row for each of 16 terms.
template <class T, int kColumns>
struct WgmmaRegisters;

// X0 and so on are the placeholders that follow the R accumulators.
#define OPF_WGMMA_REGISTERS(T, NAME, N, R, X0, X1, X2, X3, X4, X5)                                                       \
  template <>                                                                                                          \
  struct WgmmaRegisters<T, N> {                                                                                        \
    static __device__ __forceinline__ void rs(float (&d)[R], const uint32_t* a, uint64_t b) {                          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " X5 ", 0;\n"                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" OPF_LIST_##R "}, {" X0 ", " X1  \
                   ", " X2 ", " X3 "}, " X4 ", p, 1, 1, 1;\n}"                                                         \
                   : OPF_OPERANDS_##R(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1) : "memory");   \
    }                                                                                                                  \
  }

OPF_WGMMA_REGISTERS(F16, "f16", 64, 32, "%32", "%33", "%34", "%35", "%36", "%37");
OPF_WGMMA_REGISTERS(F16, "f16", 128, 64, "%64", "%65", "%66", "%67", "%68", "%69");
OPF_WGMMA_REGISTERS(F16, "f16", 256, 128, "%128", "%129", "%130", "%131", "%132", "%133");
OPF_WGMMA_REGISTERS(BF16, "bf16", 64, 32, "%32", "%33", "%34", "%35", "%36", "%37");
OPF_WGMMA_REGISTERS(BF16, "bf16", 128, 64, "%64", "%65", "%66", "%67", "%68", "%69");
OPF_WGMMA_REGISTERS(BF16, "bf16", 256, 128, "%128", "%129", "%130", "%131", "%132", "%133");

}  // namespace opfacade
