// Shadows kernels/ptx/load.cuh.
#pragma once
#include "tests/emulator/simt.h"

namespace opfacade {

template <class V>
V load_kept(const V* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(V) != 0) simt::fail("a load of a vector is not aligned");
  return *from;
}

inline void forget_origin(uint32_t&) {}

}  // namespace opfacade
