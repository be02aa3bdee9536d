// A warpgroup of latent decode that adds up the values of half the columns, for all rows, and writes them.
#pragma once
#include "kernels/mla/output.cuh"

namespace opfacade {

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
      queue.let_go();
    }
  }
};

}  // namespace opfacade
