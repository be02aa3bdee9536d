// Tiles moved by the copy engine (sm_90): one thread asks, a barrier counts the bytes.
#pragma once
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tensor_map.h"

namespace opfacade {

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// A box at five coordinates, innermost first, into shared memory; what lies outside the tensor arrives as zeros and counts.
struct BoxAt {
  int x[5];
};
__device__ __forceinline__ void tma_load(uint32_t dst, const TensorMap& map, uint32_t barrier, const BoxAt& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      ::"r"(dst), "l"(&map), "r"(barrier), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]) : "memory");
}

// Ordinary writes to shared memory before this are seen by the copy engine and the tensor cores after the next barrier.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace opfacade
