// Shadows kernels/common/counter.cuh.
#pragma once
#include "tests/emulator/simt.h"

namespace opfacade {

using Counter = unsigned long long;
inline Counter load_counter(const Counter* counter) { return *counter; }
inline void store_counter(Counter* counter, Counter value) { *counter = value; }
inline Counter add_one(Counter* counter) { return (*counter)++; }

}  // namespace opfacade
