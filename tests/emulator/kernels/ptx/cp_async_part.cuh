// Shadows kernels/ptx/cp_async_part.cuh. A copy happens when its group is waited for; the end of a line is stored at once.
#pragma once
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/part_of_vector.cuh"

namespace opfacade {

inline void cp_async_part(uint32_t dst, const void* src, int bytes) {
  if (bytes < 0 || bytes > 16) simt::fail("a copy has other than 0 to 16 bytes");
  if (bytes % 16 == 0) return cp_async_16(dst, src, bytes != 0);
  if (dst % 16 != 0 || reinterpret_cast<uintptr_t>(src) % 16 != 0) simt::fail("a copy of sixteen bytes is not aligned");
  store_shared_16(dst, part_of_vector(src, bytes));
}

}  // namespace opfacade
