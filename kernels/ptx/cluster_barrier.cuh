// Cluster barriers, which every thread of every CTA calls. Each wrapper converges its warp first, because lanes may leave loops
// and branches at different times. So callers need not know that the instruction requires whole warps.
#pragma once
#include "kernels/ptx/cluster_aligned.cuh"

namespace opfacade {

// Full barrier, with release and acquire ordering.
__device__ __forceinline__ void cluster_sync() {
  __syncwarp();
  aligned_cluster_sync();
}

// Split cluster barrier without memory ordering. A CTA arrives after it has used the data that it read from other CTAs' shared
// memory, so that no CTA exits while its shared memory is still read.
__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
  aligned_cluster_arrive();
}
// First half of a cluster barrier, with release ordering: earlier stores are complete when other CTAs pass the barrier.
__device__ __forceinline__ void cluster_publish() {
  __syncwarp();
  aligned_cluster_publish();
}
// The second half of either split barrier.
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  aligned_cluster_wait();
}

}  // namespace opfacade
