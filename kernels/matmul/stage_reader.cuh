// How computing warpgroups use stages: operands of products, and the release to the producer.
#pragma once
#include "kernels/matmul/tiles.cuh"

namespace opfacade {

template <bool kRowsAcross>
__device__ __forceinline__ Descriptors steps_of(uint32_t panels) {
  return kRowsAcross ? group_steps(panels, kPanelGroup, kAcross) : row_steps(panels);
}

// A reader determines which operand is on M of wgmma and which is on N. The operand on N has kWidth rows, the width of sums.
template <class C>
struct StageReader {
  static constexpr bool kMAcross = C::kXAcross, kNAcross = C::kWeightAcross;
  const MatmulShared<C>& smem;
  int group;
  bool shares;  // CTAs of the cluster load into each other's stages
  Ring<C::kStages> ring;

  // Descriptors of the k-steps of one panel of the current stage.
  __device__ __forceinline__ Descriptors x_steps(int panel) const {
    return steps_of<C::kXAcross>(smem.x(ring.stage) + (panel * C::kRows + group * 64) * 128);
  }
  __device__ __forceinline__ Descriptors weight_steps(int panel) const {
    return steps_of<C::kWeightAcross>(smem.weight(ring.stage) + panel * C::kColumns * 128);
  }
  __device__ __forceinline__ Descriptors on_m(int panel) const { return x_steps(panel); }
  __device__ __forceinline__ Descriptors on_n(int panel) const { return weight_steps(panel); }
  // Lane r of each warp signals CTA r of the cluster that the warp has read the stage.
  __device__ __forceinline__ void release(int stage) const {
    const int lane = threadIdx.x % 32;
    // Factors are the only part of a stage that lanes read by themselves: all have read them before one arrives.
    if constexpr (C::kFactors) __syncwarp();
    if (C::kCluster == 1 || !shares) return mbarrier_arrive_if(lane == 0, smem.empty(stage));
    mbarrier_arrive_remote_if(lane < C::kCluster, cluster_address(smem.empty(stage), lane % C::kCluster));
  }
};

}  // namespace opfacade
