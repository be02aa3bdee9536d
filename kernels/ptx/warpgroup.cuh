// Four warps that act as one (sm_90a): their registers, and barriers among some of the threads of a block.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kWarpgroup = 128;

// Every thread of a warpgroup gives registers back, or takes more. Only in a kernel with __launch_bounds__(threads, 1).
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// True in one lane of a whole warp. The compiler knows that it is one, which a comparison of lane numbers does not tell it:
// instructions with uniform operands, such as copies by the copy engine, then need no loop over lanes.
__device__ __forceinline__ bool elected() {
  uint32_t is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is));
  return is != 0;
}

// Barrier 0 is __syncthreads. `threads` counts those that wait and those that only arrive.
__device__ __forceinline__ void named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace opfacade
