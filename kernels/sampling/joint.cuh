// Sums several values of a row at once over the CTAs of its cluster.
#pragma once
#include "kernels/sampling/cluster_row.cuh"

namespace opfacade {

constexpr int kJoined = 4;

struct JointShared {
  uint64_t warp[kJoined][kSampleThreads / 32], ctas[2][kJoined][kMostCtas];
};

class Joint {
 public:
  using Sums = float[kJoined];

  __device__ __forceinline__ Joint(JointShared& shared, const ClusterRow& cluster) : shared_(shared), cluster_(cluster) {}

  // Adds the values of all threads, as integers in units of 2^-30 except within a warp. Each CTA stores its sums in all CTAs,
  // which must be running. There are two slots, because a peer may still read one. rank: of this CTA.
  __device__ __forceinline__ void add(Sums& sums, int rank) {
    const int lane = static_cast<int>(thread() % 32), warp = static_cast<int>(thread() / 32);
#pragma unroll
    for (int i = 0; i < kJoined; ++i) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
      if (lane == 0) shared_.warp[i][warp] = static_cast<uint64_t>(sums[i] * 0x1p30f);
    }
    __syncthreads();
    slot_ ^= 1;
    if (warp < kJoined) {
      const uint64_t all = ClusterRow::join(lane < kSampleThreads / 32 ? shared_.warp[warp][lane] : 0, Sum());
      if (lane < cluster_.ctas()) cluster_.store(lane, &shared_.ctas[slot_][warp][rank], all);
    }
    cluster_.sync();
  }
  // One of the sums, in any thread.
  __device__ __forceinline__ float sum(int which) const {
    uint64_t sum = 0;
#pragma unroll 1
    for (int from = 0; from < cluster_.ctas(); ++from) sum += shared_.ctas[slot_][which][from];
    return static_cast<float>(sum) * 0x1p-30f;
  }

 private:
  JointShared& shared_;
  ClusterRow cluster_;
  int slot_ = 0;
};

}  // namespace opfacade
