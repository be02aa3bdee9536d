// cp.async copies of the first bytes of a 16-byte vector; the rest of the destination is filled with zeros.
#pragma once
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

// bytes: number of bytes to read, 0 to 16. src: aligned to 16 bytes.
__device__ __forceinline__ void cp_async_part(uint32_t dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

}  // namespace opfacade
