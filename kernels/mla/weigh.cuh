// The warpgroup of latent decode that makes scores, and of them weights. It keeps the queries in registers, so that a product of
// scores reads nothing but keys from shared memory: with both operands there it would take all that shared memory gives, and
// neither copies nor weights would get in.
#pragma once
#include "kernels/mla/math.cuh"

namespace opfacade {

template <class C>
struct MlaWeigher {
  const DecodeParams& p;
  MlaShared& smem;
  uint32_t weights_at;  // of this thread
  int lane;
  bool arrives;  // see let_go
  unsigned tile = 0;  // how many there were, of all items
  MlaRing ring{};
  Ring<2> turn{};
  RowScale scale{};

  __device__ __forceinline__ MlaWeigher(const MlaParams& params, MlaShared& shared)
      : p(params.base), smem(shared), weights_at(opfacade::weights_at(smem_address(shared.weights))),
        lane(threadIdx.x % 32), arrives(arrives_at_stages(params.mapped)) {
    asm volatile("" : "+r"(weights_at), "+r"(lane));  // not found anew for each tile, which takes as long as a barrier
  }

  __device__ __forceinline__ void await(const MlaRing& at) const { mbarrier_wait(smem_address(&smem.full[at.stage]), at.parity); }

  // The first tiles of an item. All four warps have made their last scores of the one before when those in shared memory are replaced.
  __device__ __forceinline__ void take_queries(MlaQueries& q) {
    MlaRing second = ring;
    second.advance();
    await(ring), await(second);
    const uint32_t stage = smem_address(smem.kv[mla_warp() < kMlaKeys / 16 ? ring.stage : second.stage]);
    read_queries(stage, q);
    named_sync(kMlaWeighing, kWarpgroup);
    move_queries(stage, smem_address(smem.q));
    fence_async_shared();
    named_sync(kMlaWeighing, kWarpgroup);
    let_go(smem, ring, arrives), let_go(smem, ring, arrives);
  }

  __device__ __forceinline__ void start_scores(const MlaQueries& q, MlaScores& s, bool came) const {
    if (rarely(!came)) await(ring);
    issue_scores<C>(q, smem_address(smem.q), smem_address(smem.kv[ring.stage]), s);
  }

  __device__ __forceinline__ void await_place() const { mbarrier_wait(smem_address(&smem.used[turn.stage]), turn.parity ^ 1); }
  // What those that add up must multiply with what they have, before the values of this tile.
  __device__ __forceinline__ void show_factor(const float (&factor)[2]) const {
    await_place();
    if (lane == 0) smem.moved[turn.stage][mla_warp()] = tile;
    if (lane % 4 == 0) {
      smem.factor[turn.stage][mla_row()] = factor[0];
      smem.factor[turn.stage][mla_row() + 8] = factor[1];
    }
  }

  // Scores become weights. Those are made before the maximum is known, and once more in the rare case that a base moves with
  // it: the same bits, without the maximum's latency.
  __device__ __forceinline__ void weigh_tile(const MlaScores& s, MlaWeights& weights) {
    const float exponent[2] = {p.score.log2_scale, p.score.log2_scale};  // of either row
    float sum[2], factor[2];
    factor[0] = factor[1] = 1.f;
    weigh<C>(s, scale.base, exponent, weights, sum);
    const bool has[2] = {outgrown(sum[0], scale.base[0]), outgrown(sum[1], scale.base[1])};
    if (rarely(__any_sync(0xffffffffu, has[0] || has[1])) && __any_sync(0xffffffffu, follow<C>(scale, s, exponent, has, factor))) {
      weigh<C>(s, scale.base, exponent, weights, sum);
      show_factor(factor);
    }
    scale.add(factor, sum);
  }
  // Into the place of this turn, where those that add up values have done with what was there. They have the fence, too: it takes
  // as long as a few barriers, and they have time.
  __device__ __forceinline__ void put_weights(const MlaWeights& weights, bool free) {
    if (rarely(!free)) await_place();
    store_weights(weights_at, turn.stage, weights);
    turn.advance();
  }
  // The last that were put down.
  __device__ __forceinline__ void show_weights() const { mbarrier_arrive(smem_address(&smem.weighed[turn.stage ^ 1])); }

  // Weights are shown when the next scores have been asked for, which takes nearly as long as to make them: values then have the tensor
  // cores while this group has its softmax, and not the scores that it waits for.
  __device__ __forceinline__ void attend(const MlaSpan item) {
    MlaQueries q;
    MlaScores s;
    MlaWeights weights;
    take_queries(q);
    start_scores(q, s, false);
    int start = item.begin;
#pragma unroll 1
    for (;;) {
      wgmma_wait_all_at<0>();
      pin(s);
      const uint32_t stage = smem_address(smem.kv[ring.stage]);
      let_go(smem, ring, arrives);
      const bool came = mbarrier_is_over(smem_address(&smem.full[ring.stage]), ring.parity);
      const bool free = mbarrier_is_over(smem_address(&smem.used[turn.stage]), turn.parity ^ 1);
      finish_scores<C>(p, item, start, stage, s);
      ++tile;
      weigh_tile(s, weights);
      put_weights(weights, free);
      start += kMlaKeys;
      if (start >= item.end) break;  // not a branch around the scores: behind that the assembler would wait for them
      start_scores(q, s, came);
      show_weights();
    }
    show_weights();
  }

  __device__ __forceinline__ void show_sums(int slot) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(scale.sum[half]);
      if (threadIdx.x % 4 == 0) {
        smem.base[slot][mla_row() + half * 8] = scale.base[half];
        smem.sum[slot][mla_row() + half * 8] = sum;
      }
    }
    mbarrier_arrive(smem_address(&smem.summed[slot]));
  }

  __device__ __forceinline__ void run() {
    MlaQueue queue(smem);
#pragma unroll 1
    for (;;) {
      const MlaWork& work = queue.see();
      if (work.item.request < 0) break;
      const MlaSpan span = {work.item.begin, work.item.first_key, work.item.end};
      scale = RowScale();
      if (mla_tiles(work.item) > 0) attend(span);
      show_sums(queue.ring.stage);
      queue.let_go();
    }
  }
};

}  // namespace opfacade
