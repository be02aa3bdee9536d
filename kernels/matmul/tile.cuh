// Products of matrices of 16-bit elements for sm_90a: persistent CTAs, each with a producer warpgroup and one or two warpgroups
// that compute 64 rows of a tile. Sums are one chain of wgmma k-steps in the order of k, whatever the tile.
#pragma once
#include "kernels/matmul/finish.cuh"
#include "kernels/matmul/load.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace opfacade {

template <bool kRowsAcross>
__device__ __forceinline__ Descriptors steps_of(uint32_t panels) {
  return kRowsAcross ? Descriptors(panel_descriptor(panels, 1024, kAcross), 2048) : Descriptors(panel_descriptor(panels, 1024, 0), 32);
}

template <class C>
struct MatmulConsumer {
  using Sums = float[C::kColumns / 2];
  const MatmulShared<C>& smem;
  int group;
  bool shares;  // CTAs of the cluster write to each other's stages
  Ring<C::kStages> ring;

  // Issues the products of one stage.
  __device__ __forceinline__ void multiply(Sums& sums, bool accumulate) const {
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      const uint32_t x = smem.x(ring.stage) + (panel * C::kRows + group * 64) * 128;
      const uint32_t weight = smem.weight(ring.stage) + panel * C::kColumns * 128;
      WgmmaLayouts<typename C::T, C::kColumns, C::kXAcross, C::kWeightAcross>::multiply(
          sums, steps_of<C::kXAcross>(x), steps_of<C::kWeightAcross>(weight), accumulate || panel > 0);
    }
    wgmma_commit();
  }
  // Lane r of a warp tells CTA r of the cluster.
  __device__ __forceinline__ void release(int stage) const {
    const int lane = threadIdx.x % 32;
    if (C::kCluster == 1 || !shares) return mbarrier_arrive_if(lane == 0, smem.empty(stage));
    mbarrier_arrive_remote_if(lane < C::kCluster, cluster_address(smem.empty(stage), lane % C::kCluster));
  }

  // Products of a step run while the stage before it is released.
  __device__ __forceinline__ void sum(Sums& sums, int steps) {
    int before = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      mbarrier_wait(smem.full(ring.stage), ring.parity);
      multiply(sums, step > 0);
      if (step > 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    pin(sums);
    release(before);
  }
};

template <class C>
__device__ __forceinline__ void consume_tiles(const MatmulParams& p, const MatmulShared<C>& smem, const Tiles<C>& tiles, int group) {
  MatmulConsumer<C> consumer{smem, group, p.mapped != 0, {}};
  float sums[C::kColumns / 2];
  const int count = tiles.count(p);
#pragma unroll 1
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    consumer.sum(sums, tiles.steps);
    finish_tile<C>(p, tiles.at(index), tiles.rows, group, sums);
  }
}

template <class C>
__device__ __forceinline__ void produce_tiles(const MatmulParams& p, const MatmulShared<C>& smem, const Tiles<C>& tiles) {
  if (p.mapped == 0) return load_copied<C>(p, smem, tiles);
  if (threadIdx.x / 32 == 0 && elected()) load_mapped<C>(p, smem, tiles);
}

// All threads that share barriers.
template <class C>
__device__ __forceinline__ void gather() {
  if constexpr (C::kCluster > 1) cluster_sync(); else __syncthreads();
}

template <class C>
__device__ __forceinline__ void matmul_tiles(const MatmulParams& p) {
  constexpr int kGroups = C::kRows / 64;
  const MatmulShared<C> smem{smem_address(dynamic_shared())};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < C::kStages; ++stage) {
      mbarrier_init(smem.full(stage), p.mapped != 0 ? 1 : kWarpgroup);
      mbarrier_init(smem.empty(stage), 4 * kGroups * (p.mapped != 0 ? C::kCluster : 1));
    }
    mbarrier_init_fence();
  }
  gather<C>();
  wait_for_previous();
  const Tiles<C> tiles(p);
  const int group = threadIdx.x / kWarpgroup - 1;
  if (group < 0) {
    if constexpr (kGroups == 2) release_registers<56>();
    produce_tiles<C>(p, smem, tiles);
  } else {
    if constexpr (kGroups == 2) acquire_registers<224>();
    consume_tiles<C>(p, smem, tiles, group);
  }
  if constexpr (C::kCluster > 1) gather<C>();  // others may still arrive at barriers of this CTA
}

}  // namespace opfacade
