// Loads from global memory that tell L1 how long a line is needed, and words whose origin the compiler does not know.
#pragma once
#include <stdint.h>

namespace opfacade {

// Lines that CTAs of an SM read again for each of their rows stay, while rows pass. Volatile: none moves before the wait for the
// kernel that wrote them.
__device__ __forceinline__ uint4 load_kept(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.L1::evict_last.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
__device__ __forceinline__ uint2 load_kept(const uint2* from) {
  uint2 v;
  asm volatile("ld.global.L1::evict_last.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}
__device__ __forceinline__ uint32_t load_kept(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.global.L1::evict_last.b32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}

// Values computed of the word before are computed again after, instead of kept in registers.
__device__ __forceinline__ void forget_origin(uint32_t& word) { asm volatile("" : "+r"(word)); }

}  // namespace opfacade
