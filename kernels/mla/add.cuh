// A warpgroup of latent decode that adds up the values of half the columns, for all rows, and writes them.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"
#include "kernels/mla/output.cuh"

namespace opfacade {

// Merges the parts of a run that this block made one after the other: half the columns of all rows, by a warpgroup. Both wait for
// each other, before for lse, which one of them stored, and behind because the slots are those of the next run too.
template <class C>
__device__ __forceinline__ void merge_own_parts(const DecodeParams& p, const MlaWork& work, int half) {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));  // found anew: while o is held there is no register to keep what follows from it
  const int warp = thread / 32 % kMlaGroupWarps, column = half * kMlaLatent / 2 + warp % 2 * 128 + thread % 32 * 4;
  named_sync(kMlaMerging, kMlaAdders * kWarpgroup);
#pragma unroll 1
  for (int row = warp / 2; row < num_rows<C>(work.item); row += kMlaGroupWarps / 2)
    merge_columns<C, kMlaMergedParts>(GlobalRows<C>{p, work.item, work.parts}, row, column);
  named_sync(kMlaMerging, kMlaAdders * kWarpgroup);
}

template <class C>
struct MlaAdder {
  const DecodeParams& p;
  MlaShared& smem;
  int half;  // which columns
  bool arrives;  // see let_go
  MlaRing ring{};
  Ring<2> turn{};
  unsigned tile = 0;  // how many there were, of all items

  __device__ __forceinline__ void rescale(MlaHalf& o) const {
    const float factor[2] = {smem.factor[turn.stage][mla_row()], smem.factor[turn.stage][mla_row() + 8]};
#pragma unroll
    for (int i = 0; i < kMlaLatent / 8; ++i) o[0][i] *= factor[i % 4 / 2], o[1][i] *= factor[i % 4 / 2];
  }

  __device__ __forceinline__ void add_tiles(int tiles, MlaHalf& o) {
    for (int i = 0; i < kMlaQueryTiles; ++i) {  // not for this group, but a stage is given back by all
      mbarrier_wait(smem_address(&smem.full[ring.stage]), ring.parity);
      let_go(smem, ring, arrives);
    }
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      mbarrier_wait(smem_address(&smem.weighed[turn.stage]), turn.parity);
      fence_async_shared();
      if (rarely(smem.moved[turn.stage][mla_warp()] == ++tile)) rescale(o);
      issue_values<C>(smem_address(smem.weights) + turn.stage * 64, smem.piece(ring.stage, kLatents) + half * 4 * kMlaToPanel, o);
      wgmma_wait_all_at<0>();
      pin(o[0]), pin(o[1]);
      mbarrier_arrive(smem_address(&smem.used[turn.stage]));
      let_go(smem, ring, arrives);
      turn.advance();
    }
  }

  __device__ __forceinline__ void run() {
    MlaQueue queue(smem);
#pragma unroll 1
    for (;;) {
      const MlaWork& work = queue.see();
      if (work.item.request < 0) break;
      const int tiles = mla_tiles(work.item);
      MlaHalf o;
#pragma unroll
      for (int i = 0; i < kMlaLatent / 8; ++i) o[0][i] = o[1][i] = 0.f;
      if (tiles > 0) add_tiles(tiles, o);
      const int slot = queue.ring.stage;
      mbarrier_wait(smem_address(&smem.summed[slot]), queue.ring.parity);
      write_half<C>(p, work, half, smem.base[slot], smem.sum[slot], o);
      if constexpr (C::kSplit == SplitMode::kFixed)
        if (work.alone && work.parts.count > 1 && work.parts.part == work.parts.count - 1) merge_own_parts<C>(p, work, half);
      queue.let_go();
    }
  }
};

}  // namespace opfacade
