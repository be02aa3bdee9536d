// Atomic counters in global memory.
#pragma once
#include <stdint.h>

namespace opfacade {

using Counter = unsigned long long;

__device__ __forceinline__ void store_counter(Counter* counter, Counter value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}

// A writer's warp calls this in every lane before one lane increments the counter; a reader's warp calls it in every lane after
// one lane has read the counter.
__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Adds one and returns the old value. acq_rel orders earlier writes of the CTA and later reads.
__device__ __forceinline__ Counter add_one(Counter* counter) {
  Counter before;
  asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(before) : "l"(counter) : "memory");
  return before;
}

// Compares and swaps; returns the old value. The ordering is that of add_one.
__device__ __forceinline__ Counter exchange_if(Counter* counter, Counter expected, Counter value) {
  Counter before;
  asm volatile("atom.cas.acq_rel.gpu.global.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(counter), "l"(expected), "l"(value)
               : "memory");
  return before;
}

}  // namespace opfacade
