// Several values of a row at once, which the CTAs of its cluster reduce together.
#pragma once
#include "kernels/sampling/cluster_row.cuh"

namespace opfacade {

constexpr int kJoined = 4;

struct JointShared {
  uint64_t warp[kJoined][kSampleThreads / 32], cta[2][kJoined];
};

class Joint {
 public:
  using Values = uint64_t[kJoined];

  __device__ __forceinline__ Joint(JointShared& shared, const ClusterRow& cluster) : shared_(shared), cluster_(cluster) {}

  // The largest first value, and the others by `op`, in every thread; 0 changes no value. Two slots: a peer may still read one.
  template <class Op>
  __device__ __forceinline__ void reduce(Values& values, Op op) {
    const int lane = static_cast<int>(thread() % 32), warp = static_cast<int>(thread() / 32);
#pragma unroll
    for (int i = 0; i < kJoined; ++i) {
      const uint64_t own = i == 0 ? ClusterRow::join(values[i], Larger()) : ClusterRow::join(values[i], op);
      if (lane == 0) shared_.warp[i][warp] = own;
    }
    __syncthreads();
    slot_ ^= 1;
    if (warp < kJoined) {
      const uint64_t own = lane < kSampleThreads / 32 ? shared_.warp[warp][lane] : 0;
      const uint64_t all = warp == 0 ? ClusterRow::join(own, Larger()) : ClusterRow::join(own, op);
      if (lane == 0) shared_.cta[slot_][warp] = all;
    }
    cluster_.sync();
#pragma unroll
    for (int i = 0; i < kJoined; ++i) {
      const uint64_t own = cluster_.words_of_lane(&shared_.cta[slot_][i]);
      values[i] = i == 0 ? ClusterRow::join(own, Larger()) : ClusterRow::join(own, op);
    }
  }

  __device__ __forceinline__ void sync() const { cluster_.sync(); }

 private:
  JointShared& shared_;
  ClusterRow cluster_;
  int slot_ = 0;
};

}  // namespace opfacade
