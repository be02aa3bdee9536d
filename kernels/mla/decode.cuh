// Latent decode for sm_90a: one query row a request, up to 128 heads that all attend to the same rows, which are key and
// value at once. A block takes 64 heads, keeps them in shared memory and goes over tiles of 64 tokens. o of 64 heads is 64 x
// 512 f32 numbers, half of all registers of an SM, so two warpgroups hold 256 columns of it each, and both need all weights
// of a tile.
//
// They take turns at scores: group 0 makes those of even tiles, group 1 those of odd ones, and shows weights and bases to
// the other through shared memory. While one runs its softmax the tensor cores do the other's products:
//
//   group 0   scores 0 |  softmax 0  | values 0, left        | values 1, left  | scores 2 | softmax 2 ...
//   group 1            |  scores 1   | values 0, right; softmax 1 | values 1, right |          | scores 3 ...
//
// A tile is loaded once for all uses. It comes panel by panel, and goes in three pieces as soon as their last product is made:
// about 1500 cycles before what takes their place is needed. Weights go through shared memory and no operand through
// registers, which any assembler gets right. Head blocks of one request lie along the grid's second axis, so that blocks
// that read the same tokens run side by side and share them in the L2.
#pragma once
#include "kernels/attention/decode_join.cuh"
#include "kernels/mla/gather.cuh"
#include "kernels/mla/output.cuh"

namespace opfacade {

template <class C>
struct MlaConsumer {
  const MlaParams& whole;
  const DecodeParams& p;
  MlaShared& smem;
  int group;  // 0 or 1: also the stage of the tiles whose scores it makes
  MlaStagesRing ring{};
  uint32_t item_parity = 0, q_parity = 0;
  RowScale scale{};

  // What threads have copied is seen by the tensor cores only after a fence.
  __device__ __forceinline__ void await(uint32_t full, uint32_t parity) const {
    mbarrier_wait(full, parity);
    if (!whole.mapped) fence_async_shared();
  }
  __device__ __forceinline__ bool is_there(uint32_t barrier, uint32_t parity) const {
    return __all_sync(0xffffffffu, mbarrier_is_over(barrier, parity));
  }
  // The last look at a stage: this group's piece, and the weights.
  __device__ __forceinline__ void release(int stage) {
    warp_arrive(smem.empty[stage][group]);
    warp_arrive(smem.empty[stage][kRotated]);
    ring.pass(stage);
  }

  // What follows reads a panel that `full` tells of; came: it is known to be there.
  __device__ __forceinline__ void await_panel(bool came, uint32_t full, uint32_t parity) const {
    if (!came) mbarrier_wait(full, parity);
    if (rarely(!whole.mapped)) fence_async_shared();
  }
  // Panel by panel as they come. holds: values of the other stage are under way; it is given back as soon as they are made,
  // for which the products of the first panel leave time. A panel takes 128 cycles of products, and a loop over panels, with
  // its branches and addresses, took 200: so those of a piece are unrolled (all of them would be a tenth of the time to
  // compile), and each looks for the next before it starts its own products.
  __device__ __forceinline__ void start_scores(MlaScores& s, bool holds) {
    constexpr int kPieceStep = 4 * sizeof(uint64_t);  // from the first barrier of a piece to that of the next
    const int panel_step = whole.box_panels == 1 ? sizeof(uint64_t) : 0;  // from barrier to barrier of a piece
    const uint32_t parity = ring.parity(group);
    uint32_t full = smem_address(smem.full[group]);
    Descriptor q = panel_descriptor(smem_address(smem.q), 1024, 0);
    Descriptor k = panel_descriptor(smem_address(smem.kv[group]), whole.to_group, 0);
    bool came = is_there(full, parity);
    if (holds && !came) {
      wgmma_wait_all_at<0>();
      release(group ^ 1);
      holds = false;
    }
#pragma unroll 1
    for (int piece = 0; piece < kRotated; ++piece) {
#pragma unroll
      for (int panel = 0; panel < 4; ++panel) {
        await_panel(came, full + panel * panel_step, parity);
        came = is_there(full + (panel < 3 ? (panel + 1) * panel_step : kPieceStep), parity);
        issue_scores<C>(q, {k.low + panel * (whole.to_panel >> 4), k.high}, piece == 0 && panel == 0, s);
        q.low += kMlaQueryPanel >> 4;
        if (panel == 0 && holds) {
          wgmma_wait<1>();
          release(group ^ 1);
          holds = false;
        }
      }
      full += kPieceStep, k.low += piece_at(1) >> 4;
    }
    await_panel(came, full, parity);
    issue_scores<C>(q, panel_descriptor(smem_address(smem.kv[group]) + piece_at(kRotated), 1024, 0), false, s);
  }
  // Of its own stage a group has seen all panels already.
  __device__ __forceinline__ void start_values(int stage, MlaHalf& o) const {
    if (stage != group)
#pragma unroll 1
      for (int panel = 0; panel < 4; panel += whole.box_panels)
        await(smem_address(&smem.full[stage][first_panel(group) + panel]), ring.parity(stage));
    issue_values<C>(smem.piece(stage, kRotated), smem.piece(stage, group), whole.to_group, whole.to_panel, o);
  }
  __device__ __forceinline__ void await_weights(int stage) const {
    mbarrier_wait(smem_address(&smem.weighed[stage]), ring.parity(stage));
  }

  __device__ __forceinline__ static void rescale(MlaHalf& o, const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kMlaLatent / 4; ++i) o[i] *= factor[i % 4 / 2];
  }

  // Scores become weights. Those are made before the maximum is known, and once more in the rare case that a base moves with
  // it: the same bits, without the maximum's latency. Returns whether a base of this warp has moved.
  __device__ __forceinline__ bool weigh_tile(MlaScores& s, uint32_t (&weights)[kMlaKeys / 4], float (&factor)[2]) {
    const float exponent[2] = {p.score.log2_scale, p.score.log2_scale};  // of either row
    float sum[2];
    bool moved = false;
#pragma unroll 1
    for (bool again = false;; again = true) {
      weigh<C>(s, scale.base, exponent, weights, sum);
      const bool doubtful = may_outgrow(sum[0], scale.base[0]) || may_outgrow(sum[1], scale.base[1]);
      if (again || !__any_sync(0xffffffffu, doubtful)) break;
      moved = __any_sync(0xffffffffu, follow<C>(scale, s, exponent, factor));
    }
    if (moved) {
      scale.add(factor, sum);
    } else {
      scale.add(sum);
    }
    return moved;
  }
  // Shows them to the other group. All four warps must have their scores, because weights take the place of a part of the key.
  __device__ __forceinline__ void show_weights(const MlaSpan& item, int start, const uint32_t (&weights)[kMlaKeys / 4]) const {
    named_sync(kMlaOwnGroup + group, kWarpgroup);
    store_weights<C>(smem.kv[group] + piece_at(kRotated), weights);
    if (threadIdx.x % 4 == 0) {
      smem.base[group][mla_row()] = scale.base[0];
      smem.base[group][mla_row() + 8] = scale.base[1];
    }
    sweep_unseen(item, start, smem.piece(group, kLeft), whole.to_group, whole.to_panel);
    fence_async_shared();
    mbarrier_arrive(smem_address(&smem.weighed[group]));
    await_weights(group);
  }

  // One piece of code for both groups, whose lines differ by when they make scores (see above). Every wait for products that may be
  // early stands in a branch of its own: see wgmma_wait_all_at.
  __device__ __forceinline__ void attend(const MlaSpan item, int tiles, MlaHalf& o) {
    MlaScores s;
    float factor[2];
    bool holds = false;  // the stage of the tile before, whose values are under way
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = tile % 2;
      if (stage == 0) {
        if (tile + group < tiles) {
          start_scores(s, holds);
          wgmma_wait_all_at<1>();
          pin(s);
        }
        holds = false;
        if (tile + 2 >= tiles) warp_arrive(smem.q_empty);
      }
      bool moved;
      if (stage == group) {
        uint32_t weights[kMlaKeys / 4];
        const int start = item.begin + tile * kMlaKeys;
        finish_scores<C>(p, item, start, s);
        moved = weigh_tile(s, weights, factor);
        show_weights(item, start, weights);
      } else {
        if (holds && !is_there(smem_address(&smem.weighed[stage]), ring.parity(stage))) {
          wgmma_wait_all_at<2>();
          release(stage ^ 1);
          holds = false;
        }
        await_weights(stage);
        moved = __any_sync(0xffffffffu, adopt(scale, smem.base[stage], p.score.log2_scale, factor));
      }
      if (rarely(moved)) {
        wgmma_wait_all_at<3>();
        pin(o);
        rescale(o, factor);
      }
      start_values(stage, o);
      if (holds) {
        wgmma_wait<1>();
        release(stage ^ 1);
      }
      holds = true;
      if (stage == 1 && group == 1) {  // its next scores need this stage
        wgmma_wait_all_at<4>();
        release(stage);
        holds = false;
      }
    }
    wgmma_wait_all_at<5>();
    pin(o);
    if (holds) release((tiles - 1) % 2);
  }

  // Both groups have added up the weights of their own tiles; a row's sum is that of both, and the same in each.
  __device__ __forceinline__ void join_sums(float (&sum)[2]) {
    const int other = group ^ 1, turn = item_parity;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] = quad_sum(scale.sum[half]);
      if (threadIdx.x % 4 == 0) smem.sum[turn][group][mla_row() + half * 8] = sum[half];
    }
    mbarrier_arrive(smem_address(&smem.summed[group]));
    mbarrier_wait(smem_address(&smem.summed[other]), turn);
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half] += smem.sum[turn][other][mla_row() + half * 8];
    item_parity ^= 1;  // two items on, the other group has arrived after it has read these
  }

  __device__ __forceinline__ void run() {
    MlaQueue queue(smem);
#pragma unroll 1
    for (;;) {
      const MlaWork& work = queue.see();
      if (work.item.request < 0) break;
      const int tiles = mla_tiles(work.item);
      const MlaSpan span = {work.item.begin, work.item.first_key, work.item.end};
      MlaHalf o;
#pragma unroll
      for (int i = 0; i < kMlaLatent / 4; ++i) o[i] = 0.f;
      scale = RowScale();
      if (group == 0 ? tiles > 0 : tiles > 1) await(smem_address(&smem.q_full), q_parity);
      if (tiles > 0) q_parity ^= 1;
      attend(span, tiles, o);
      float sum[2];
      join_sums(sum);
      write_half<C>(p, work, group, scale.base, sum, o);
      queue.let_go();
    }
  }
};

template <class C>
__device__ __forceinline__ void mla_decode(const MlaParams& p) {
  MlaShared& smem = *reinterpret_cast<MlaShared*>(dynamic_shared());
  if (threadIdx.x == 0) init_barriers(smem, p.mapped);
  prefetch_lengths<C>(p.base);
  begin(p.base);
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);
  if (group == 0) {
    give_registers<72>();
    produce<C>(p, smem);
  } else {
    take_registers<216>();
    MlaConsumer<C>{p, p.base, smem, group - 1}.run();
  }
}

}  // namespace opfacade
