// Shared memory accesses of 4, 8 and 16 bytes, and cp.async copies from global memory.
#pragma once
#include <stdint.h>

namespace opfacade {

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The dynamic shared memory of this CTA.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

__device__ __forceinline__ void store_shared_16(uint32_t dst, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void store_shared_4(uint32_t dst, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(dst), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t load_shared_4(uint32_t src) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(src) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t src) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(src) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_shared_8(uint32_t src) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(src) : "memory");
  return v;
}

// Copies 16 bytes; writes zeros and reads nothing if not `valid`.
__device__ __forceinline__ void cp_async_16(uint32_t dst, const void* src, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(valid ? 16 : 0) : "memory");
}

// Loads the cache line that contains `byte` into L1. Nothing waits for the load.
__device__ __forceinline__ void load_to_l1(const void* byte) {
  uint32_t unused;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(unused) : "l"(byte));
}
// Prefetches a line into L2. L2 is coherent, so the prefetch may precede the wait for the line's writer.
__device__ __forceinline__ void prefetch_l2(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// Prefetches `bytes` bytes into L2. Called by a whole warp; a single instruction on sm_90. from, bytes: multiples of 16.
__device__ __forceinline__ void prefetch_l2_span(const void* from, uint32_t bytes, uint32_t lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
#else
  for (uint32_t at = 128 * lane; at < bytes; at += 128 * 32) prefetch_l2(static_cast<const char*>(from) + at);
#endif
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace opfacade
