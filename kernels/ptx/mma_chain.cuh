// mma.sync products that replace wgmma in a chain: on sm_90 both give the same bits for 16-bit types, whichever operand is A
// (bench/matmul_probes.py). The emulator has its own version of this file, because its two products add in different orders.
#pragma once
#include "kernels/ptx/mma.cuh"

namespace opfacade {

template <class T>
__device__ __forceinline__ void mma_chain(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16x8x16<T>(d, a, b0, b1);
}

}  // namespace opfacade
