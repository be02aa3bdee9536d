// Matmuls with few columns and few rows. The CTAs of a cluster share a tile, and each sums kOwn segments of k. A CTA stores its
// sums in its own shared memory, in place of the stages. Then each of at most four CTAs adds the sums of all segments, in
// order, for the rows that its warps store, and finishes them. The order is that of SegmentConsumer.
#pragma once
#include "kernels/matmul/finish.cuh"
#include "kernels/matmul/load.cuh"

namespace opfacade {

// Shared address of four sums of a thread: the vectors of the threads of a warpgroup are adjacent.
__device__ __forceinline__ uint32_t place_of(uint32_t base, int four) {
  return base + (four * kWarpgroup + threadIdx.x % kWarpgroup) * 16;
}

template <int kCount>
__device__ __forceinline__ void put_sums(uint32_t base, const float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const uint4 bits = make_uint4(__float_as_uint(sums[i]), __float_as_uint(sums[i + 1]), __float_as_uint(sums[i + 2]),
                                  __float_as_uint(sums[i + 3]));
    store_shared_16(place_of(base, i / 4), bits);
  }
}

// many: number of segments; each CTA of the cluster has kOwn consecutive ones.
template <int kOwn, int kCount>
__device__ __forceinline__ void add_segments(uint32_t base, int many, float (&sums)[kCount]) {
#pragma unroll 4
  for (int segment = 0; segment < many; ++segment)
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const uint32_t place = place_of(base, segment % kOwn * (kCount / 4) + i / 4);
      const float4 more = cluster_load_4(cluster_address(place, segment / kOwn));
      sums[i] = segment == 0 ? more.x : sums[i] + more.x, sums[i + 1] = segment == 0 ? more.y : sums[i + 1] + more.y;
      sums[i + 2] = segment == 0 ? more.z : sums[i + 2] + more.z, sums[i + 3] = segment == 0 ? more.w : sums[i + 3] + more.w;
    }
}

// Computes the only tile of this cluster. group: index of the computing warpgroup; negative in the producer.
template <class C>
__device__ __forceinline__ void split_tile(const MatmulParams& p, const MatmulShared<C>& smem, const Tiles<C>& tiles, int group) {
  static_assert(C::kRows == 64 && C::kCluster == 1, "one computing warpgroup");
  const int index = tiles.first(), warp = threadIdx.x % kWarpgroup / 32;
  const bool computes = group == 0 && index < tiles.count(p);
  constexpr int kCount = C::kColumns / 2;
  float sums[kCount];
  if (computes) {
    typename C::template Consumer<C> consumer{{smem, group, false, {}}};
    const int length = p.segment / (C::kPanels * kPanel<C>);
    Tiles<C> part = tiles;
    float own[C::kOwn * kCount];
#pragma unroll
    for (int i = 0; i < C::kOwn; ++i) {
      part.steps = min(length, tiles.steps - i * length);
      if (part.steps <= 0) break;
      consumer.sum(sums, p, part, index);
#pragma unroll
      for (int j = 0; j < kCount; ++j) own[i * kCount + j] = sums[j];
    }
    named_sync(1, kWarpgroup);  // products of the other warps still read the stages
    put_sums(smem.base, own);
  } else if (group < 0) {
    if (p.mapped == 0) load_copied<C>(p, smem, tiles);
    else if (threadIdx.x / 32 == 0 && elected()) load_mapped<C>(p, smem, tiles);
  }
  cluster_sync();
  if (computes && warp % (C::kSplit < 4 ? C::kSplit : 4) == tiles.segment()) {
    const Tile tile = tiles.at(index);
    if (tile.row + warp * 16 < tiles.rows) {
      add_segments<C::kOwn>(smem.base, (p.k + p.segment - 1) / p.segment, sums);
      finish_tile<C>(p, tile, group, sums);
    }
  }
  cluster_sync();  // others may still read partial sums of this CTA
}

}  // namespace opfacade
