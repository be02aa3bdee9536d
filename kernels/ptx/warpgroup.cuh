// Warpgroups (four warps, sm_90a): register reallocation, and named barriers.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kWarpgroup = 128;

// setmaxnreg: every thread of a warpgroup releases or acquires registers. Needs __launch_bounds__(threads, 1).
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// elect.sync: true in one lane of a full warp. Unlike a lane comparison it tells the compiler that one lane runs, so TMA and
// other instructions with uniform operands need no loop over lanes.
__device__ __forceinline__ bool elected() {
  uint32_t is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is));
  return is != 0;
}

// Named barriers; barrier 0 is __syncthreads. `threads` counts waiting and arriving threads.
__device__ __forceinline__ void named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace opfacade
