// Work that one warp of a block finds and others look at where it lies, known a few pieces ahead (sm_90). Shared holds
// work[kQueue] and the barriers work_full[kQueue], one arrival, and work_empty[kQueue], one of each thread that reads: by one a
// warp nothing would be wrong, but racecheck would not follow it.
#pragma once
#include "kernels/ptx/mbarrier.cuh"

namespace opfacade {

constexpr int kQueue = 4;

// Arrives once for this warp, after all its lanes.
__device__ __forceinline__ void warp_arrive(uint64_t& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(&barrier));
}
// The same where a branch would end what runs beside it.
__device__ __forceinline__ void warp_arrive_at(uint32_t barrier) {
  __syncwarp();
  mbarrier_arrive_if(threadIdx.x % 32 == 0, barrier);
}

// The others let go of it, in order, when they are done.
template <class Shared, class Work>
struct WorkQueueIn {
  Shared& smem;
  Ring<kQueue> ring{};

  __device__ __forceinline__ explicit WorkQueueIn(Shared& shared) : smem(shared) {}

  __device__ __forceinline__ void publish(const Work& work) const {
    mbarrier_wait(smem_address(&smem.work_empty[ring.stage]), ring.parity ^ 1);
    __syncwarp();  // all have seen it: once the work is told, the barrier may go on by two phases
    if (threadIdx.x % 32 == 0) {
      smem.work[ring.stage] = work;
      mbarrier_arrive(smem_address(&smem.work_full[ring.stage]));
    }
    __syncwarp();
  }
  __device__ __forceinline__ const Work& see() const {
    mbarrier_wait(smem_address(&smem.work_full[ring.stage]), ring.parity);
    return smem.work[ring.stage];
  }
  __device__ __forceinline__ void pass() { ring.advance(); }
  __device__ __forceinline__ void let_go() {
    mbarrier_arrive(smem_address(&smem.work_empty[ring.stage]));
    ring.advance();
  }
};

}  // namespace opfacade
