// Shadows kernels/ptx/cp_async_part.cuh. The source of a copy is read at its issue; the copy is executed when a thread waits
// for its group.
#pragma once
#include <array>
#include <deque>

#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

inline void cp_async_part(uint32_t dst, const void* src, int bytes) {
  static std::deque<std::array<unsigned char, 16>> read;  // its elements keep their addresses
  if (bytes < 0 || bytes > 16) simt::fail("a copy has other than 0 to 16 bytes");
  if (bytes == 16 || bytes == 0) return cp_async_16(dst, src, bytes != 0);
  if (dst % 16 != 0 || reinterpret_cast<uintptr_t>(src) % 16 != 0) simt::fail("a copy of sixteen bytes is not aligned");
  read.emplace_back();
  memcpy(read.back().data(), src, bytes);
  simt::ask_copy(dst, read.back().data(), true);
}

inline void cp_async_16_if(bool any, uint32_t dst, const void* src) {
  if (any) cp_async_16(dst, src, true);
}

}  // namespace opfacade
