// A number in global memory that blocks of one launch share.
#pragma once
#include <stdint.h>

namespace opfacade {

using Counter = unsigned long long;

__device__ __forceinline__ void store_counter(Counter* counter, Counter value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}

// By every lane of a warp that has written, before one of them counts it in, and by every lane that reads, after.
__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Adds one; what was there before. Orders what this thread's block wrote before it, and what is read after it.
__device__ __forceinline__ Counter add_one(Counter* counter) {
  Counter before;
  asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(before) : "l"(counter) : "memory");
  return before;
}

// Writes `value` where `expected` is; what was there before. Orders as add_one does.
__device__ __forceinline__ Counter exchange_if(Counter* counter, Counter expected, Counter value) {
  Counter before;
  asm volatile("atom.cas.acq_rel.gpu.global.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(counter), "l"(expected), "l"(value)
               : "memory");
  return before;
}

}  // namespace opfacade
