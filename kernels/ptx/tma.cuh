// TMA tile loads (sm_90): one thread issues, an mbarrier counts the bytes.
#pragma once
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tensor_map.h"

namespace opfacade {

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Loads a box at five coordinates, innermost first. Elements outside the tensor arrive as zeros and count as bytes.
struct BoxAt {
  int x[5];
};
__device__ __forceinline__ void tma_load(uint32_t dst, const TensorMap& map, uint32_t barrier, const BoxAt& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      ::"r"(dst), "l"(&map), "r"(barrier), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]) : "memory");
}

// The same into each CTA of the cluster whose bit `mask` has, at the same address, and to the barrier at the same address there.
__device__ __forceinline__ void tma_load_multicast(uint32_t dst, const TensorMap& map, uint32_t barrier, uint16_t mask, const BoxAt& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
      ::"r"(dst), "l"(&map), "r"(barrier), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]), "h"(mask) : "memory");
}

// Makes earlier ordinary writes to shared memory visible to TMA and tensor cores after the next barrier.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace opfacade
