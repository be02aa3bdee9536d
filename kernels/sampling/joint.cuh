// Several values of a row at once, which the CTAs of its cluster add together.
#pragma once
#include "kernels/sampling/cluster_row.cuh"

namespace opfacade {

constexpr int kJoined = 5;

struct JointShared {
  uint64_t warp[kJoined][kSampleThreads / 32], cta[2][kJoined];
};

class Joint {
 public:
  using Values = uint64_t[kJoined];

  __device__ __forceinline__ Joint(JointShared& shared, const ClusterRow& cluster) : shared_(shared), cluster_(cluster) {}

  // The sums, in every thread. Two slots: a peer may still read one.
  __device__ __forceinline__ void add(Values& values) {
    const int lane = static_cast<int>(thread() % 32), warp = static_cast<int>(thread() / 32);
#pragma unroll
    for (int i = 0; i < kJoined; ++i) {
      const uint64_t own = ClusterRow::join(values[i], Sum());
      if (lane == 0) shared_.warp[i][warp] = own;
    }
    __syncthreads();
    slot_ ^= 1;
    if (warp < kJoined) {
      const uint64_t all = ClusterRow::join(lane < kSampleThreads / 32 ? shared_.warp[warp][lane] : 0, Sum());
      if (lane == 0) shared_.cta[slot_][warp] = all;
    }
    cluster_.sync();
#pragma unroll
    for (int i = 0; i < kJoined; ++i) values[i] = ClusterRow::join(cluster_.words_of_lane(&shared_.cta[slot_][i]), Sum());
  }

 private:
  JointShared& shared_;
  ClusterRow cluster_;
  int slot_ = 0;
};

}  // namespace opfacade
