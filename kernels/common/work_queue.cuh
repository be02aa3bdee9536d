// Work queue in shared memory: one warp publishes work items a few steps ahead, the others read them in place (sm_90). Shared
// holds work[kQueue], work_full[kQueue] with one arrival, and work_empty[kQueue] with one arrival per reading thread. One
// arrival per warp would be correct, but compute-sanitizer's racecheck could not follow it.
#pragma once
#include "kernels/ptx/mbarrier.cuh"

namespace opfacade {

constexpr int kQueue = 4;

// Arrives once for this warp, after all its lanes have arrived.
__device__ __forceinline__ void warp_arrive(uint64_t& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(&barrier));
}
// The same, predicated: a branch would end the overlap with asynchronous products.
__device__ __forceinline__ void warp_arrive_at(uint32_t barrier) {
  __syncwarp();
  mbarrier_arrive_if(threadIdx.x % 32 == 0, barrier);
}

// publish: the producer adds an item. peek: waits for the current item and returns it. advance: goes to the next item without
// releasing this one. release: returns the current item to the producer and goes to the next one.
template <class Shared, class Work>
struct WorkQueueIn {
  Shared& smem;
  Ring<kQueue> ring{};

  __device__ __forceinline__ explicit WorkQueueIn(Shared& shared) : smem(shared) {}

  __device__ __forceinline__ void publish(const Work& work) const {
    mbarrier_wait(smem_address(&smem.work_empty[ring.stage]), ring.parity ^ 1);
    __syncwarp();  // all lanes have seen the phase: after the publication the barrier may advance by two phases
    if (threadIdx.x % 32 == 0) {
      smem.work[ring.stage] = work;
      mbarrier_arrive(smem_address(&smem.work_full[ring.stage]));
    }
    __syncwarp();
  }
  __device__ __forceinline__ const Work& peek() const {
    mbarrier_wait(smem_address(&smem.work_full[ring.stage]), ring.parity);
    return smem.work[ring.stage];
  }
  __device__ __forceinline__ void advance() { ring.advance(); }
  __device__ __forceinline__ void release() {
    mbarrier_arrive(smem_address(&smem.work_empty[ring.stage]));
    ring.advance();
  }
};

}  // namespace opfacade
