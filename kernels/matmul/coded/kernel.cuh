// Products of x and a weight of codes of four bits for sm_90a: persistent CTAs of a producer warpgroup and warpgroups that decode
// and multiply. With few rows of x the warpgroups of a CTA, or of a cluster, share the columns of a tile and have a segment of k each;
// with many one warpgroup adds all segments of its columns, in the same order: bits do not depend on the number of rows.
#pragma once
#include "kernels/common/registers.h"
#include "kernels/matmul/coded/chain.cuh"
#include "kernels/matmul/coded/finish.cuh"
#include "kernels/matmul/coded/load.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace opfacade {

// All segments of the columns of a warpgroup.
template <class C>
__device__ __forceinline__ void consume_beside(const MatmulParams& p, const CodedShared<C>& smem, const Tiles<C>& tiles, int warpgroup) {
  CodedConsumer<C> consumer{smem, warpgroup, {}, {}};
  const SegmentsOf<C> segments(p, smem.team);
  const int count = tiles.count(p);
#pragma unroll 1
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    float sums[C::kTokens / 2];
    if constexpr (!C::kSegments) {
      consumer.sum(sums, p, tile, Segment(p, 0));
    } else {
#pragma unroll 1
      for (int segment = 0; segment < segments.all; ++segment) {
        float found[C::kTokens / 2];
        consumer.sum(found, p, tile, Segment(p, segment));
#pragma unroll
        for (int i = 0; i < C::kTokens / 2; ++i) sums[i] = segment == 0 ? found[i] : sums[i] + found[i];
      }
    }
    finish_beside<C>(p, tile, warpgroup, sums);
  }
}

// One segment.
template <class C>
__device__ __forceinline__ void consume_segment(const MatmulParams& p, CodedConsumer<C>& consumer, const Tile& tile, const SegmentsOf<C>& segments) {
  if (segments.first >= segments.stop) return;
  float sums[C::kTokens / 2];
  consumer.sum(sums, p, tile, Segment(p, segments.first));
  put_partial<C>(consumer.smem.team, sums);
}

template <class C>
__device__ __forceinline__ void consume_along(const MatmulParams& p, const CodedShared<C>& smem, const Tiles<C>& tiles) {
  CodedConsumer<C> consumer{smem, 0, {}, {}};
  const SegmentsOf<C> segments(p, smem.team);
  const int count = tiles.count(p);
#pragma unroll 1
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    consume_segment<C>(p, consumer, tile, segments);
    named_sync(1, C::kAlong * kWarpgroup);
    finish_along<C>(p, smem, tile, segments.all);
    named_sync(1, C::kAlong * kWarpgroup);
  }
}

// The one tile of this cluster.
template <class C>
__device__ __forceinline__ void consume_split(const MatmulParams& p, const CodedShared<C>& smem, const Tiles<C>& tiles) {
  const SegmentsOf<C> segments(p, smem.team);
  const bool any = tiles.first() < tiles.count(p);
  const Tile tile = any ? tiles.at(tiles.first()) : Tile{};
  CodedConsumer<C> consumer{smem, 0, {}, {}};
  if (any) consume_segment<C>(p, consumer, tile, segments);
  cluster_sync();
  if (any) finish_along<C>(p, smem, tile, segments.all);
  cluster_sync();  // others may still read partial sums of this CTA
}

template <class C>
__device__ __forceinline__ void start_barriers(const MatmulParams& p, CodedShared<C> smem) {
  const int full = p.mapped != 0 ? 1 : CodedLoader<C>::kThreads;
  for (smem.team = 0; smem.team < C::kAlong; ++smem.team) {
    for (int stage = 0; stage < C::kCodeStages; ++stage)
      mbarrier_init(smem.codes_full(stage), full), mbarrier_init(smem.codes_empty(stage), 4 * C::kBeside);
    for (int stage = 0; stage < C::kXStages; ++stage)
      mbarrier_init(smem.x_full(stage), full), mbarrier_init(smem.x_empty(stage), 4 * C::kBeside);
  }
  mbarrier_init_fence();
}

template <class C>
__device__ __forceinline__ void coded_tiles(const MatmulParams& p) {
  constexpr int kWarpgroups = C::kAlong * C::kBeside, kProducer = 56, kConsumer = kWarpgroups == 4 ? 104 : 224;
  static_assert(kWarpgroups == 4 || kWarpgroups == 2, "registers are shared out for two or four");
  static_assert(C::kAlong == 1 || C::kBeside == 1, "warpgroups lie along k or side by side");
  static_assert(fit_registers(kProducer + kWarpgroups * kConsumer, 1 + kWarpgroups), "warpgroups would wait for registers for ever");
  const int group = threadIdx.x / kWarpgroup - 1;  // below 0: the producer
  CodedShared<C> smem{smem_address(dynamic_shared()), 0};
  if (threadIdx.x == 0) start_barriers<C>(p, smem);
  if (C::kAlong > 1) smem.team = group < 0 ? threadIdx.x / CodedLoader<C>::kThreads : group;
  if constexpr (C::kSplit > 1) cluster_sync(); else __syncthreads();
  wait_for_previous();
  const Tiles<C> tiles(p);
  if (group < 0) {
    release_registers<kProducer>();
    produce_coded<C>(p, smem, tiles);
    if constexpr (C::kSplit > 1) cluster_sync(), cluster_sync();  // as those that compute do
  } else {
    acquire_registers<kConsumer>();
    if constexpr (C::kSplit > 1) consume_split<C>(p, smem, tiles);
    else if constexpr (C::kAlong > 1) consume_along<C>(p, smem, tiles);
    else consume_beside<C>(p, smem, tiles, group);
  }
}

}  // namespace opfacade
