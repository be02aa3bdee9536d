// Stores to the memory of other GPUs, and the words that say they have arrived.
#pragma once
#include <stdint.h>

namespace opfacade {

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// A peer sees it when it sees an epoch that this thread stores after a fence.
template <class T>
__device__ __forceinline__ void push(T* to, T value) {
  *to = value;
}

// Orders every push that this thread made, or saw at a barrier, before the epochs that it stores next.
__device__ __forceinline__ void fence_system() { __threadfence_system(); }

__device__ __forceinline__ void tell_epoch(uint64_t* to, uint64_t epoch) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(epoch) : "memory");
}

__device__ __forceinline__ uint64_t told_epoch(const uint64_t* from) {
  uint64_t epoch;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(epoch) : "l"(from) : "memory");
  return epoch;
}

}  // namespace opfacade
