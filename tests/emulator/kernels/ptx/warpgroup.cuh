// Shadows kernels/ptx/warpgroup.cuh.
#pragma once
#include "tests/emulator/simt.h"

namespace opfacade {

constexpr int kWarpgroup = 128;

template <int kRegisters>
void release_registers() {}
template <int kRegisters>
void acquire_registers() {}

inline bool elected() { return simt::lane() == 0; }

// There are 16 named barriers; the first is the barrier of __syncthreads.
inline simt::Meeting& named_barrier(int barrier) {
  if (barrier < 1 || barrier > 15) simt::fail("a named barrier expected a number from 1 to 15");
  return simt::current->block->named[barrier];
}
inline void named_sync(int barrier, int threads) { simt::meet(named_barrier(barrier), threads); }
inline void named_arrive(int barrier, int threads) {
  simt::publish(named_barrier(barrier), threads);
}

}  // namespace opfacade
