// cp.async copies of the first bytes of a 16-byte vector; the rest of the destination is filled with zeros.
#pragma once
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

// bytes: number of bytes to read, 0 to 16. src: aligned to 16 bytes.
__device__ __forceinline__ void cp_async_part(uint32_t dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

// Copies 16 bytes, or does nothing, without a branch.
__device__ __forceinline__ void cp_async_16_if(bool any, uint32_t dst, const void* src) {
  asm volatile("{\n.reg .pred any;\nsetp.ne.b32 any, %2, 0;\n@any cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}" ::"r"(dst), "l"(src), "r"(static_cast<int>(any)) : "memory");
}

}  // namespace opfacade
