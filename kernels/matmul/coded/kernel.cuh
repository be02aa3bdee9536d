// Matmul of x and a weight of 4-bit codes for sm_90a: persistent CTAs with a producer warpgroup and warpgroups that decode and
// multiply. If x has few rows, the warpgroups of a CTA or of a cluster share the columns of a tile, and each sums one segment
// of k. If x has many rows, one warpgroup sums all segments of its columns. Segments are added in the same order in both cases,
// so bits do not depend on the number of rows.
#pragma once
#include "kernels/common/registers.h"
#include "kernels/matmul/coded/ahead.cuh"
#include "kernels/matmul/coded/chain.cuh"
#include "kernels/matmul/coded/finish.cuh"
#include "kernels/matmul/coded/load.cuh"
#include "kernels/matmul/rest.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/forget.cuh"

namespace opfacade {

// Sums all segments of a warpgroup's columns.
template <class C>
__device__ __forceinline__ void sum_segments(float (&sums)[C::kTokens / 2], const MatmulParams& p, CodedConsumer<C>& consumer, const Tile& tile, int segments) {
  if constexpr (!C::kSegments) return consumer.sum(sums, p, tile, Segment(p, 0));
#pragma unroll 1
  for (int segment = 0; segment < segments; ++segment) {
    float found[C::kTokens / 2];
    consumer.sum(found, p, tile, Segment(p, segment));
#pragma unroll
    for (int i = 0; i < C::kTokens / 2; ++i) sums[i] = segment == 0 ? found[i] : sums[i] + found[i];
  }
}

template <class C>
__device__ __forceinline__ void consume_beside(const MatmulParams& p, const CodedShared<C>& smem, const CodedTiles<C>& tiles, int warpgroup) {
  const SegmentsOf<C> segments(p, smem.team);
  const int count = tiles.count(p);
  CodedConsumer<C> consumer{smem, warpgroup, shares_x<C>(p), {}, {}};
#pragma unroll 1
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    float sums[C::kTokens / 2];
    sum_segments<C>(sums, p, consumer, tile, segments.all);
    finish_beside<C>(p, tile, warpgroup, sums);
  }
}

// Like consume_beside, for 16-bit x: decodes one panel ahead.
template <class C>
__device__ __forceinline__ void consume_ahead(const MatmulParams& p, const CodedShared<C>& smem, const CodedTiles<C>& tiles, int warpgroup) {
  const int count = tiles.count(p), first = tiles.first();
  if (first >= count) return;
  AheadConsumer<C> consumer(p, smem, warpgroup, shares_x<C>(p), tiles.at(first));
#pragma unroll 1
  for (int index = first; index < count; index += tiles.stride()) {
    float sums[C::kTokens / 2];
    consumer.sum(sums, tile_behind<C>(p, tiles, index, count));
    uint32_t again = index;
    forget_origin(again);  // the tile is computed again, so that it needs no registers during the products
    finish_beside<C>(p, tiles.at(again), warpgroup, sums);
  }
}

// Sums the segment of this team. Returns whether the team has a segment.
template <class C>
__device__ __forceinline__ bool consume_segment(float (&sums)[C::kTokens / 2], const MatmulParams& p, CodedConsumer<C>& consumer, const Tile& tile, const SegmentsOf<C>& segments) {
  if (segments.first >= segments.stop) return false;
  consumer.sum(sums, p, tile, Segment(p, segments.first));
  return true;
}

// Adds the sums of all segments of a tile and stores results. sync: synchronises all threads that have segments of the tile.
template <class C, class Sync>
__device__ __forceinline__ void finish_segments(float (&sums)[C::kTokens / 2], const MatmulParams& p, const CodedShared<C>& smem, Tile tile, int segments, bool any, const Sync& sync) {
  constexpr int kRound = CodedShared<C>::kRound;
#pragma unroll 1
  for (int round = 0; round < CodedShared<C>::kRounds; ++round, tile.row += kRound) {
    if (any) put_partial<C>(smem.team, sums);
    sync();
    if (segments > 0) finish_along<C>(p, smem, tile, segments);
    sync();  // others may still read partial sums of this warpgroup
#pragma unroll
    for (int i = 0; i + kRound / 2 < C::kTokens / 2; ++i) sums[i] = sums[i + kRound / 2];
  }
}

template <class C>
__device__ __forceinline__ void consume_along(const MatmulParams& p, const CodedShared<C>& smem, const CodedTiles<C>& tiles) {
  CodedConsumer<C> consumer{smem, 0, shares_x<C>(p), {}, {}};
  const SegmentsOf<C> segments(p, smem.team);
  const int count = tiles.count(p);
#pragma unroll 1
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    float sums[C::kTokens / 2];
    const bool any = consume_segment<C>(sums, p, consumer, tile, segments);
    finish_segments<C>(sums, p, smem, tile, segments.all, any, [] { named_sync(1, C::kAlong * kWarpgroup); });
  }
}

// Computes the only tile of this cluster.
template <class C>
__device__ __forceinline__ void consume_split(const MatmulParams& p, const CodedShared<C>& smem, const CodedTiles<C>& tiles) {
  const SegmentsOf<C> segments(p, smem.team);
  const bool has_tile = tiles.first() < tiles.count(p);
  const Tile tile = has_tile ? tiles.at(tiles.first()) : Tile{};
  CodedConsumer<C> consumer{smem, 0, shares_x<C>(p), {}, {}};
  float sums[C::kTokens / 2];
  const bool any = has_tile && consume_segment<C>(sums, p, consumer, tile, segments);
  finish_segments<C>(sums, p, smem, tile, has_tile ? segments.all : 0, any, [] { cluster_sync(); });
}

template <class C>
__device__ __forceinline__ void start_barriers(const MatmulParams& p, CodedShared<C> smem) {
  const int full = p.mapped != 0 ? 1 : CodedLoader<C>::kThreads, rows_full = C::kGather ? CodedLoader<C>::kThreads : full;
  for (smem.team = 0; smem.team < C::kAlong; ++smem.team) {
    for (int stage = 0; stage < C::kCodeStages; ++stage)
      mbarrier_init(smem.codes_full(stage), full), mbarrier_init(smem.codes_empty(stage), 4 * C::kBeside);
    for (int stage = 0; stage < C::kXStages; ++stage)
      mbarrier_init(smem.x_full(stage), rows_full), mbarrier_init(smem.x_empty(stage), 4 * C::kBeside * (shares_x<C>(p) ? C::kAside : 1));
  }
  mbarrier_init_fence();
}

// Registers per thread of the producer, and of warpgroups that multiply. Sums of groups need more if a tile has 128 rows.
template <class C>
struct CodedRegisters {
  static constexpr int kWarpgroups = C::kAlong * C::kBeside, kOfGroups = C::kSums && !C::kGather ? 72 : 88;
  static constexpr int kProducer = kWarpgroups == 4 ? 64 : C::kGrouped ? kOfGroups : 56;
  static constexpr int kConsumer = kWarpgroups == 4 ? 104 : kWarpgroups == 1 ? 240 : !C::kGrouped ? 224 : kOfGroups == 72 ? 216 : 208;
};

template <class C>
__device__ __forceinline__ void coded_tiles(const MatmulParams& p) {
  constexpr int kWarpgroups = C::kAlong * C::kBeside, kProducer = CodedRegisters<C>::kProducer, kConsumer = CodedRegisters<C>::kConsumer;
  static_assert(kWarpgroups == 4 || kWarpgroups == 2 || kWarpgroups == 1, "registers are shared out for two or four");
  static_assert(C::kAlong == 1 || C::kBeside == 1, "warpgroups lie along k or side by side");
  static_assert(fit_registers(kProducer + kWarpgroups * kConsumer, 1 + kWarpgroups), "warpgroups would wait for registers for ever");
  const int group = threadIdx.x / kWarpgroup - 1;  // negative: the producer
  CodedShared<C> smem{smem_address(dynamic_shared()), 0};
  if (threadIdx.x == 0) start_barriers<C>(p, smem);
  if (C::kAlong > 1) smem.team = group < 0 ? threadIdx.x / CodedLoader<C>::kThreads : group;
  if constexpr (C::kSplit * C::kAside > 1) cluster_sync(); else __syncthreads();
  wait_for_previous();
  const CodedTiles<C> tiles(p);
  if (group < 0) {
    release_registers<kProducer>();
    produce_coded<C>(p, smem, tiles);
    if constexpr (C::kZeroTail) clear_rest<C>(p);
    for (int i = 0; C::kSplit > 1 && i < 2 * CodedShared<C>::kRounds; ++i) cluster_sync();  // as often as consumers do
  } else {
    acquire_registers<kConsumer>();
    if constexpr (C::kSplit > 1) consume_split<C>(p, smem, tiles);
    else if constexpr (C::kAlong > 1) consume_along<C>(p, smem, tiles);
    else if constexpr (C::kSize == 2) consume_ahead<C>(p, smem, tiles, group);
    else consume_beside<C>(p, smem, tiles, group);
  }
  if constexpr (C::kSplit == 1 && C::kAside > 1) cluster_sync();  // others may still arrive at barriers of this CTA
}

}  // namespace opfacade
