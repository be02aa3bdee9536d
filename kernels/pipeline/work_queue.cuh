// Work queue in shared memory: one warp publishes work items a few steps ahead, the others read them in place (sm_90).
//
//   WorkQueueIn<Shared, Work> queue(smem);                            // in each warp
//   queue.publish(work), queue.advance();                             // the warp that finds work; the last item says so
//   const Work& work = queue.peek(); if (is_last(work)) break;        // all others, each thread
//   use(work), queue.release();                                       // and once it has read the item for the last time
//
// Constraints: Shared holds work[kQueue], work_full[kQueue] with one arrival, and work_empty[kQueue] with one arrival a reading
// thread. One arrival a warp would be correct, but compute-sanitizer's racecheck could not follow it.
#pragma once
#include "kernels/pipeline/ring.cuh"

namespace opfacade {

constexpr int kQueue = 4;

// publish: the producer adds an item. peek: waits for the current item and returns it. advance: goes to the next item without
// releasing this one. release: returns the current item to the producer and goes to the next one.
template <class Shared, class Work>
struct WorkQueueIn {
  Shared& smem;
  Ring<kQueue> ring{};

  __device__ __forceinline__ explicit WorkQueueIn(Shared& shared) : smem(shared) {}

  __device__ __forceinline__ void publish(const Work& work) const {
    ring.wait_empty_together(smem.work_empty);
    if (threadIdx.x % 32 == 0) {
      smem.work[ring.stage] = work;
      mbarrier_arrive(ring.at(smem.work_full));
    }
    __syncwarp();
  }
  __device__ __forceinline__ const Work& peek() const {
    ring.wait_full(smem.work_full);
    return smem.work[ring.stage];
  }
  __device__ __forceinline__ void advance() { ring.advance(); }
  __device__ __forceinline__ void release() {
    mbarrier_arrive(ring.at(smem.work_empty));
    ring.advance();
  }
};

}  // namespace opfacade
