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

inline void named_sync(int barrier, int threads) { simt::meet(simt::current->block->named[barrier], threads); }
inline void named_arrive(int barrier, int threads) {
  simt::Meeting& meeting = simt::current->block->named[barrier];
  if (++meeting.arrived == threads) meeting.arrived = 0, ++meeting.round;
}

}  // namespace opfacade
