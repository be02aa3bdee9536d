// Atomic counters in global memory.
#pragma once
#include <stdint.h>

namespace opfacade {

using Counter = unsigned long long;

__device__ __forceinline__ void store_counter(Counter* counter, Counter value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}

// Writers: every lane of the warp calls this before one lane increments the counter. Readers: every lane calls it after one
// lane has read the counter.
__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Adds one; returns the old value. acq_rel: orders earlier writes of the CTA and later reads.
__device__ __forceinline__ Counter add_one(Counter* counter) {
  Counter before;
  asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(before) : "l"(counter) : "memory");
  return before;
}

// Compare-and-swap; returns the old value. Same ordering as add_one.
__device__ __forceinline__ Counter exchange_if(Counter* counter, Counter expected, Counter value) {
  Counter before;
  asm volatile("atom.cas.acq_rel.gpu.global.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(counter), "l"(expected), "l"(value)
               : "memory");
  return before;
}

}  // namespace opfacade
