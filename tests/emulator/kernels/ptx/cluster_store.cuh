// Shadows kernels/ptx/cluster_store.cuh.
#pragma once
#include "tests/emulator/simt.h"

namespace opfacade {

inline void cluster_store_two_words(uint32_t address, uint64_t value) { memcpy(simt::at(address), &value, 8); }

}  // namespace opfacade
