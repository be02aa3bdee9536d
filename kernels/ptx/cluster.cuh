// Thread block clusters (sm_90 and later): CTAs that can access each other's shared memory.
#pragma once
#include <stdint.h>

#include "kernels/ptx/cluster_barrier.cuh"

namespace opfacade {

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
