// The score warpgroup of latent decode computes scores and softmax weights. The queries stay in registers, so that a score
// product reads only keys from shared memory: with both operands in shared memory, it would use the whole bandwidth and block
// the copies and the weights.
#pragma once
#include "kernels/mla/math.cuh"

namespace opfacade {

template <class C>
struct MlaScoreGroup {
  const DecodeParams& p;
  MlaShared& smem;
  uint32_t weights_at;  // the address at which this thread stores weights
  int lane;
  bool arrives;  // see release_stage
  unsigned tile = 0;  // number of tiles so far, over all items
  MlaRing ring{};
  Ring<2> buffer{};
  RowScale scale{};

  __device__ __forceinline__ MlaScoreGroup(const MlaParams& params, MlaShared& shared)
      : p(params.base), smem(shared), weights_at(opfacade::weights_at(smem_address(shared.weights))),
        lane(threadIdx.x % 32), arrives(arrives_at_stages(params.mapped)) {
    // kept in registers, because recomputing them costs as much as a barrier per tile
    asm volatile("" : "+r"(weights_at), "+r"(lane));
  }

  // Loads the query tiles of an item. The first named barrier follows the last score product of the previous item.
  __device__ __forceinline__ void load_queries(MlaQueries& q) {
    MlaRing second = ring;
    second.advance();
    ring.wait_full(smem.full), second.wait_full(smem.full);
    const uint32_t stage = smem_address(smem.kv[mla_warp() < kMlaKeys / 16 ? ring.stage : second.stage]);
    read_queries(stage, q);
    named_sync(kMlaScoring, kWarpgroup);
    copy_queries(stage, smem_address(smem.q));
    fence_async_shared();
    named_sync(kMlaScoring, kWarpgroup);
    release_stage(smem, ring, arrives), release_stage(smem, ring, arrives);
  }

  __device__ __forceinline__ void issue_next_scores(const MlaQueries& q, MlaScores& s, bool ready) const {
    if (rarely(!ready)) ring.wait_full(smem.full);
    issue_scores<C>(q, smem_address(smem.q), smem_address(smem.kv[ring.stage]), s);
  }

  // Publishes the factor by which the value groups rescale o before they add this tile.
  __device__ __forceinline__ void publish_factor(const float (&factor)[2]) const {
    buffer.wait_empty(smem.weights_empty);
    if (lane == 0) smem.rescaled_at[buffer.stage][mla_warp()] = tile;
    if (leads_row(lane)) {
      smem.factor[buffer.stage][mla_row()] = factor[0];
      smem.factor[buffer.stage][mla_row() + 8] = factor[1];
    }
  }

  // Converts scores to weights before the maximum of the tile is known. If a base changes (rare), the weights are computed
  // again. The bits are the same, without the latency of the maximum.
  __device__ __forceinline__ void weigh_tile(const MlaScores& s, MlaWeights& weights) {
    const float exponent[2] = {p.score.log2_scale, p.score.log2_scale};  // for both rows
    float sum[2], factor[2];
    factor[0] = factor[1] = 1.f;
    compute_weights<C>(s, scale.base, exponent, weights, sum);
    const bool has[2] = {exceeds_base(sum[0], scale.base[0]), exceeds_base(sum[1], scale.base[1])};
    if (rarely(__any_sync(0xffffffffu, has[0] || has[1])) && __any_sync(0xffffffffu, update_base<C>(scale, s, exponent, has, factor))) {
      compute_weights<C>(s, scale.base, exponent, weights, sum);
      publish_factor(factor);
    }
    scale.add(factor, sum);
  }
  // Stores weights in the current buffer once the value groups have released it. The value groups execute the proxy fence,
  // because they have slack; it takes as long as several barriers.
  __device__ __forceinline__ void store_when_empty(const MlaWeights& weights, bool free) {
    if (rarely(!free)) buffer.wait_empty(smem.weights_empty);
    store_weights(weights_at, buffer.stage, weights);
    buffer.advance();
  }
  // Publishes the weights stored last.
  __device__ __forceinline__ void publish_weights() const { mbarrier_arrive(smem_address(&smem.weights_full[buffer.stage ^ 1])); }

  // Weights are published after the next scores are issued, which takes about as long as computing them: the value products
  // then use the tensor cores during this group's softmax, not during its scores.
  __device__ __forceinline__ void attend(const MlaSpan item) {
    MlaQueries q;
    MlaScores s;
    MlaWeights weights;
    load_queries(q);
    issue_next_scores(q, s, false);
    int start = item.begin;
#pragma unroll 1
    for (;;) {
      wgmma_wait_all_at<0>();
      pin(s);
      const uint32_t stage = smem_address(smem.kv[ring.stage]);
      release_stage(smem, ring, arrives);
      const bool ready = ring.is_full(smem.full);
      const bool free = buffer.is_empty(smem.weights_empty);
      finish_scores<C>(p, item, start, stage, smem.nonfinite, s);
      ++tile;
      weigh_tile(s, weights);
      store_when_empty(weights, free);
      start += kMlaKeys;
      // The loop exits here, because a branch around the scores would make the assembler wait for them.
      if (start >= item.end) break;
      issue_next_scores(q, s, ready);
      publish_weights();
    }
    publish_weights();
  }

  __device__ __forceinline__ void publish_sums(int slot) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(scale.sum[half]);
      if (leads_row(threadIdx.x)) {
        smem.base[slot][mla_row() + half * 8] = scale.base[half];
        smem.sum[slot][mla_row() + half * 8] = sum;
      }
    }
    mbarrier_arrive(smem_address(&smem.sums_full[slot]));
  }

  __device__ __forceinline__ void run() {
    MlaQueue queue(smem);
#pragma unroll 1
    for (;;) {
      const MlaWork& work = queue.peek();
      if (work.item.request < 0) break;
      const MlaSpan span = {work.item.begin, work.item.first_key, work.item.end, work.first_row_end};
      scale = RowScale();
      if (mla_tiles(work.item) > 0) attend(span);
      publish_sums(queue.ring.stage);
      queue.release();
    }
  }
};

}  // namespace opfacade
