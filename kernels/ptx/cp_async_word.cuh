// cp.async copies of the first bytes of a word of four; the rest of the destination is filled with zeros.
#pragma once
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

// bytes: number of bytes to read, 0 to 4. src: aligned to 4 bytes.
__device__ __forceinline__ void cp_async_word(uint32_t dst, const void* src, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

}  // namespace opfacade
