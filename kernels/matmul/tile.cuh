// Matmul for sm_90a: persistent CTAs, each with a producer warpgroup and one to three computing warpgroups, which have 64 rows
// of a tile each. Products are summed in the order of k, whatever the tile size. C::Consumer computes the sums, as one chain of
// wgmma k-steps (chain.cuh) or in scaled parts (parts.cuh).
#pragma once
#include "kernels/common/registers.h"
#include "kernels/matmul/codes.cuh"
#include "kernels/matmul/finish.cuh"
#include "kernels/matmul/gathered.cuh"
#include "kernels/matmul/groups.cuh"
#include "kernels/matmul/load.cuh"
#include "kernels/matmul/ranges.cuh"
#include "kernels/matmul/rest.cuh"
#include "kernels/matmul/split.cuh"
#include "kernels/matmul/swapped.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/forget.cuh"

namespace opfacade {

template <class C, class All>
__device__ __forceinline__ void consume_tiles(const MatmulParams& p, const MatmulShared<C>& smem, const All& tiles, int group) {
  typename C::template Consumer<C> consumer{{smem, group, p.mapped != 0, {}}};
  typename C::template Consumer<C>::Sums sums;
  const int count = tiles.count(p);
#pragma unroll 1
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    if constexpr (C::kRanges) consumer.sum(sums, p, tiles.of(index), index); else consumer.sum(sums, p, tiles, index);
    uint32_t again = index;
    forget_origin(again);  // the tile is computed again, so that it needs no registers during the products
    if constexpr (C::kSwapped) finish_swapped<C>(p, tiles.at(again), group, sums); else finish_tile<C>(p, tiles.at(again), group, sums);
  }
  if constexpr (StagedRows<C>::kUsed) StagedRows<C>::template wait_for_boxes<0>();
}

template <class C, class All>
__device__ __forceinline__ void produce_tiles(const MatmulParams& p, const MatmulShared<C>& smem, const All& tiles) {
  if constexpr (C::kGather) return load_gathered<C>(p, smem, tiles);
  if constexpr (C::kRanges) return load_ranges<C>(p, smem, tiles);
  if constexpr (C::kCoded) return load_coded<C>(p, smem, tiles);
  if (p.mapped == 0) return load_copied<C>(p, smem, tiles);
  if (threadIdx.x / 32 == 0 && elected()) load_mapped<C>(p, smem, tiles);
  if constexpr (C::kFactors) {
    if (threadIdx.x / 32 > 0) load_factors<C>(p, smem, tiles);
  }
}

// Synchronises all threads that share barriers: those of the CTA or of the cluster.
template <class C>
__device__ __forceinline__ void gather() {
  if constexpr (C::kCluster * C::kSplit > 1) cluster_sync(); else __syncthreads();
}

template <class C>
__device__ __forceinline__ void matmul_tiles(const MatmulParams& p) {
  constexpr int kGroups = kComputing<C>;
  constexpr bool kSearches = C::kGrouped || C::kRanges;
  constexpr bool kMany = C::kCoded || C::kTerms == 2;
  // Registers: producers that search groups, decode codes or copy two terms need more than others. Sums of 8-bit parts need 216.
  constexpr int kProducer = kMany ? 88 : kSearches ? C::kSize == 2 ? 104 : 72 : 56;
  constexpr int kConsumer = kGroups == 3 ? 152 : kMany ? 208 : kSearches ? C::kSize == 2 ? 200 : 216 : 224;
  constexpr int kMost = kGroups == 3 ? 3 : 2;
  static_assert(fit_registers(kProducer + kMost * kConsumer, kMost + 1), "warpgroups would wait for registers that the CTA has not");
  const MatmulShared<C> smem{smem_address(dynamic_shared())};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < C::kStages; ++stage) {
      mbarrier_init(smem.full(stage), (p.mapped == 0 ? 0 : C::kFactors ? 1 + 32 : 1) + (C::kCoded ? 32 : p.mapped == 0 || C::kGather ? kWarpgroup : 0));
      mbarrier_init(smem.empty(stage), 4 * kGroups * (p.mapped != 0 ? C::kCluster : 1));
    }
    mbarrier_init_fence();
  }
  gather<C>();
  wait_for_previous();
  const typename C::template TilesOf<C> tiles(p);
  const int group = threadIdx.x / kWarpgroup - 1;
  if constexpr (C::kSplit > 1) return split_tile<C>(p, smem, tiles, group);
  if (group < 0) {
    if constexpr (kGroups > 1) release_registers<kProducer>();
    produce_tiles<C>(p, smem, tiles);
    if constexpr (C::kZeroTail) clear_rest<C>(p);
  } else {
    if constexpr (kGroups > 1) acquire_registers<kConsumer>();
    consume_tiles<C>(p, smem, tiles, group);
  }
  if constexpr (C::kCluster > 1) gather<C>();  // others may still arrive at barriers of this CTA
}

}  // namespace opfacade
