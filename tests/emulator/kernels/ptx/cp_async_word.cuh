// Shadows kernels/ptx/cp_async_word.cuh. A copy is executed when its group is waited for; its source is read earlier.
#pragma once
#include <array>
#include <deque>

#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

inline void cp_async_word(uint32_t dst, const void* src, int bytes) {
  static std::deque<std::array<unsigned char, 4>> read;  // its elements keep their addresses
  if (bytes < 0 || bytes > 4) simt::fail("a copy of a word has other than 0 to 4 bytes");
  if (dst % 4 != 0 || reinterpret_cast<uintptr_t>(src) % 4 != 0) simt::fail("a copy of a word is not aligned");
  read.push_back({});
  memcpy(read.back().data(), src, bytes);
  simt::ask_copy(dst, read.back().data(), true, 4);
}

}  // namespace opfacade
