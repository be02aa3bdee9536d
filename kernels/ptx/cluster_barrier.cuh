// Cluster barriers, which every thread of every CTA calls. Each gathers the lanes of its warp first, since loops and branches
// before it end at different times: so no caller has to know that the instruction takes whole warps.
#pragma once
#include "kernels/ptx/cluster_aligned.cuh"

namespace opfacade {

// With release and acquire.
__device__ __forceinline__ void cluster_sync() {
  __syncwarp();
  aligned_cluster_sync();
}

// Split cluster barrier without memory ordering. A CTA arrives after it has used what it read from other CTAs' shared memory,
// so that none exits before.
__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
  aligned_cluster_arrive();
}
// The first half of a cluster barrier that says that the stores before it are done.
__device__ __forceinline__ void cluster_publish() {
  __syncwarp();
  aligned_cluster_publish();
}
// The second half of either.
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  aligned_cluster_wait();
}

}  // namespace opfacade
