// Shadows kernels/ptx/counter.cuh.
#pragma once
#include "tests/emulator/simt.h"

namespace opfacade {

using Counter = unsigned long long;
inline void store_counter(Counter* counter, Counter value) { *counter = value; }
inline Counter add_one(Counter* counter) { return (*counter)++; }
inline Counter exchange_if(Counter* counter, Counter expected, Counter value) {
  const Counter before = *counter;
  if (before == expected) *counter = value;
  return before;
}

inline void fence_device() {}

}  // namespace opfacade
