// The value warpgroups of latent decode. Each accumulates half of the columns of o for all rows and writes them.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"
#include "kernels/mla/output.cuh"

namespace opfacade {

// One warpgroup merges half of the columns of all rows, from the partials of a request that this CTA computed one after the
// other. The value warpgroups synchronise before the merge, because one of them stored the lse, and after it, because the next
// request reuses the slots.
template <class C>
__device__ __forceinline__ void merge_own_partials(const DecodeParams& p, const MlaWork& work, int half) {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));  // recomputed here, because o leaves no register for values derived from the thread index
  const int warp = thread / 32 % kMlaGroupWarps, column = half * kMlaLatent / 2 + warp % 2 * 128 + thread % 32 * 4;
  named_sync(kMlaMerging, kMlaValueGroups * kWarpgroup);
#pragma unroll 1
  for (int row = warp / 2; row < num_rows<C>(work.item); row += kMlaGroupWarps / 2)
    merge_columns<C, kMlaMergedPartials>(GlobalRows<C>{p, work.item, work.partials}, row, column);
  named_sync(kMlaMerging, kMlaValueGroups * kWarpgroup);
}

template <class C>
struct MlaValueGroup {
  const DecodeParams& p;
  MlaShared& smem;
  int half;  // which half of the columns
  bool arrives;  // see release_stage
  MlaRing ring{};
  Ring<2> buffer{};
  unsigned tile = 0;  // number of tiles so far, over all items

  __device__ __forceinline__ void rescale(MlaHalf& o) const {
    const float factor[2] = {smem.factor[buffer.stage][mla_row()], smem.factor[buffer.stage][mla_row() + 8]};
#pragma unroll
    for (int i = 0; i < kMlaLatent / 8; ++i) o[0][i] *= factor[fragment_half(i)], o[1][i] *= factor[fragment_half(i)];
  }

  __device__ __forceinline__ void accumulate_tiles(int tiles, MlaHalf& o) {
    for (int i = 0; i < kMlaQueryTiles; ++i) {  // query tiles: unused here, but every consumer releases each stage
      ring.wait_full(smem.full);
      release_stage(smem, ring, arrives);
    }
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      buffer.wait_full(smem.weights_full);
      fence_async_shared();
      if (rarely(smem.rescaled_at[buffer.stage][mla_warp()] == ++tile)) rescale(o);
      issue_values<C>(smem_address(smem.weights) + buffer.stage * 64, smem.part(ring.stage, kLatentPart) + half * 4 * kMlaToPanel, o);
      wgmma_wait_all_at<0>();
      pin(o[0]), pin(o[1]);
      mbarrier_arrive(buffer.at(smem.weights_empty));
      release_stage(smem, ring, arrives);
      buffer.advance();
    }
  }

  __device__ __forceinline__ void run() {
    MlaQueue queue(smem);
#pragma unroll 1
    for (;;) {
      const MlaWork& work = queue.peek();
      if (work.item.request < 0) break;
      const int tiles = mla_tiles(work.item);
      MlaHalf o;
#pragma unroll
      for (int i = 0; i < kMlaLatent / 8; ++i) o[0][i] = o[1][i] = 0.f;
      if (tiles > 0) accumulate_tiles(tiles, o);
      const int slot = queue.ring.stage;
      queue.ring.wait_full(smem.sums_full);
      write_half<C>(p, work, half, smem.base[slot], smem.sum[slot], o);
      if constexpr (C::kSplit == SplitMode::kFixed)
        if (work.owns_units && work.partials.count > 1 && work.partials.index == work.partials.count - 1) merge_own_partials<C>(p, work, half);
      queue.release();
    }
  }
};

}  // namespace opfacade
