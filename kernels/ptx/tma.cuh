// TMA tile loads and stores (sm_90): one thread issues. An mbarrier counts the bytes of loads; groups count stores.
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

// Loads a box into every CTA of the cluster whose bit is set in `mask`, at the same shared address, and signals the barrier at
// the same address of each.
__device__ __forceinline__ void tma_load_multicast(uint32_t dst, const TensorMap& map, uint32_t barrier, uint16_t mask, const BoxAt& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
      ::"r"(dst), "l"(&map), "r"(barrier), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]), "h"(mask) : "memory");
}

// Stores a box from shared memory; elements outside the tensor are not written.
__device__ __forceinline__ void tma_store(const TensorMap& map, uint32_t src, const BoxAt& at) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
               ::"l"(&map), "r"(src), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]) : "memory");
}
// Commits the stores that this thread issued since its previous commit as one group.
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all groups but the latest `kPending` have read shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Makes earlier ordinary writes to shared memory visible to TMA and tensor cores after the next barrier.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace opfacade
