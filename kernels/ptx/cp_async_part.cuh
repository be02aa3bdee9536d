// Copies of the first bytes of a vector, behind which zeros are written: whole vectors by cp.async. The instruction also takes fewer
// bytes, but compute-sanitizer counts all sixteen as read; so a thread loads and stores those at the end of a line itself.
#pragma once
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/part_of_vector.cuh"

namespace opfacade {

// bytes: 0 to 16, so many are read. src: aligned to 16 bytes.
__device__ __forceinline__ void cp_async_part(uint32_t dst, const void* src, int bytes) {
  if (bytes % 16 != 0) return store_shared_16(dst, part_of_vector(src, bytes));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

}  // namespace opfacade
