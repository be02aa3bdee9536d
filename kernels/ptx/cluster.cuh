// Thread block clusters (sm_90 and later): CTAs that can access each other's shared memory.
#pragma once
#include <stdint.h>

namespace opfacade {

// Cluster barrier with release and acquire; every thread of every CTA calls it.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Split cluster barrier without memory ordering. A CTA arrives after it has used what it read from other CTAs' shared memory,
// so that none exits before.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Maps a shared memory address of this CTA to the same address in CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, int rank) {
  uint32_t out = address;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(address), "r"(rank));
#endif
  return out;
}

__device__ __forceinline__ float cluster_load(uint32_t address) {
  float value = 0.f;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#endif
  return value;
}
__device__ __forceinline__ uint32_t cluster_load_word(uint32_t address) {
  uint32_t value = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
#endif
  return value;
}
__device__ __forceinline__ uint64_t cluster_load_two_words(uint32_t address) {
  uint64_t value = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.b64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
#endif
  return value;
}
__device__ __forceinline__ float4 cluster_load_4(uint32_t address) {
  float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
#endif
  return v;
}

}  // namespace opfacade
