// Shadows kernels/ptx/cp_async.cuh. A copy happens when its group is waited for, and not before.
#pragma once
#include "tests/emulator/simt.h"

namespace opfacade {

inline uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - simt::current->block->shared);
}
inline unsigned char* dynamic_shared() { return simt::current->block->shared; }

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
  if (dst % 16 != 0 || reinterpret_cast<uintptr_t>(src) % 16 != 0) throw std::runtime_error("a copy of sixteen bytes is not aligned");
  simt::current->open.push_back({dst, src, valid});
}
inline void prefetch_l2(const void*) {}

inline void cp_async_commit() {
  simt::current->groups.push_back(std::move(simt::current->open));
  simt::current->open.clear();
}

template <int kPending>
void cp_async_wait() {
  auto& groups = simt::current->groups;
  for (; groups.size() > kPending; groups.pop_front())
    for (const simt::Copy& copy : groups.front()) {
      if (copy.valid) {
        memcpy(simt::at(copy.dst), copy.src, 16);
      } else {
        memset(simt::at(copy.dst), 0, 16);
      }
    }
}

}  // namespace opfacade
