// Asynchronous warpgroup products of e4m3, 64 x N x 32 (sm_90a). The reduction dimension is contiguous in both operands, with
// panels 128 elements wide; the hardware transposes nothing. Accumulators as in wgmma.cuh; a[2 c + h] packs columns 16 c + 4 t
// to 16 c + 4 t + 3 of row g + 8 h.
//
// The hardware truncates each addend of an instruction, the accumulator included, to 13 bits below the largest exponent. Sums
// over more than one tile belong in f32 registers.
// requires: ptxas >= 13.3
#pragma once
#include "kernels/ptx/fp8.cuh"
#include "kernels/ptx/wgmma_registers.cuh"

namespace opfacade {

// ss, rs: d = a * b^T or d += a * b^T; b has a row for each column of d.
template <>
struct Wgmma<E4M3, 128> {
  static __device__ __forceinline__ void ss(float (&d)[64], const Descriptors& a, const Descriptors& b, bool accumulate) {
    asm volatile(OPF_EXPAND(OPF_WGMMA_SHARED, 128, 64, "k32.f32.e4m3.e4m3", "p", ", 1, 1", OPF_AFTER_64)
                 : OPF_OPERANDS_64(d, 0)
                 : OPF_DESCRIPTORS(a), OPF_DESCRIPTORS(b), "r"(static_cast<int>(accumulate))
                 : "memory");
  }
};

OPF_WGMMA_REGISTERS(E4M3, "k32.f32.e4m3.e4m3", ", 1, 1", 128, 64);

}  // namespace opfacade
