// Shadows kernels/ptx/cp_async.cuh. A copy is executed when a thread waits for its group, not earlier.
#pragma once
#include "tests/emulator/simt.h"

namespace opfacade {

inline uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - simt::current->block->shared);
}
inline unsigned char* dynamic_shared() { return simt::current->block->shared; }

inline void store_shared_4(uint32_t dst, uint32_t v) { memcpy(simt::at(dst), &v, 4); }
inline uint32_t load_shared_4(uint32_t src) {
  uint32_t v;
  memcpy(&v, simt::at(src), 4);
  return v;
}
inline void store_shared_16(uint32_t dst, uint4 v) { memcpy(simt::at(dst), &v, 16); }
inline uint4 load_shared_16(uint32_t src) {
  uint4 v;
  memcpy(&v, simt::at(src), 16);
  return v;
}
inline uint2 load_shared_8(uint32_t src) {
  uint2 v;
  memcpy(&v, simt::at(src), 8);
  return v;
}

inline void cp_async_16(uint32_t dst, const void* src, bool valid) {
  if (dst % 16 != 0 || reinterpret_cast<uintptr_t>(src) % 16 != 0) simt::fail("a copy of sixteen bytes is not aligned");
  simt::ask_copy(dst, src, valid);
}
inline void load_to_l1(const void* byte) { (void)*static_cast<const volatile uint8_t*>(byte); }
inline void prefetch_l2(const void*) {}
inline void prefetch_l2_span(const void* from, uint32_t bytes, uint32_t) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) simt::fail("a prefetch of a span is not aligned");
}

inline void cp_async_commit() { simt::close_copies(); }

template <int kPending>
void cp_async_wait() {
  simt::await_copies(kPending);
}

}  // namespace opfacade
