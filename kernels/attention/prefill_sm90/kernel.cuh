// Attention of many query rows for sm_90a. Persistent CTAs: each processes row tiles from a queue. Warpgroup 0 is the producer
// (TMA if possible); two or three consumer warpgroups compute 64 rows each with wgmma. While one runs its softmax, another
// uses the tensor cores; within one, the scores of the next tile (Q K^T) overlap the values of this one (weights times V). Key
// tiles are processed from last to first, so that the masked tiles of the diagonal come first. Query heads of one kv head are
// packed into rows, so tiles are full for any group size.
#pragma once
#include "kernels/attention/prefill_sm90/producer.cuh"
#include "kernels/attention/prefill_sm90/join.cuh"
#include "kernels/attention/prefill_sm90/nonfinite.cuh"
#include "kernels/attention/prefill_sm90/output.cuh"
#include "kernels/attention/prefill_sm90/steps.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace opfacade {

template <class C>
struct Consumer {
  using Shared = WgmmaShared<C>;
  using Scores = WgmmaScores<C>;
  using Weights = WgmmaWeights<C>;
  static constexpr int kEarlyWords = kConsumers<C> == 2 ? C::kTileKv / 8 : 0;
  // With one stage of Q it is released after the last scores, so that the next Q can load. With two stages the next Q is loaded
  // already, and the release waits for the next work.
  static constexpr bool kReleasesEarly = Shared::kQStages == 1;
  // Inner loop for steady-state tiles (no mask, no rescale): +2 % at head_dim 64; at 128 it costs 1.5 % through worse register
  // allocation.
  static constexpr bool kInnerLoop = C::kHeadDim == 64 && C::kKvBytes == 2;

  const PrefillParams& p;
  WgmmaShared<C>& smem;
  bool mapped;  // TMA loads V as stored, so the tile warps check masked tiles after v_full
  int group;  // index of this warpgroup among the consumers
  WorkQueue<C> queue, current;  // the next work, and the current one
  Ring<C::kStages> keys, values;  // a tile's V has the stage of its K, so `values` repeats `keys` one step later
  Ring<Shared::kQStages> queries;
  bool keys_ready = false, values_ready = true;  // for the next step; the first step has no values
  uint32_t checked_parity = 0;  // one bit per stage
  WgmmaShown shown = {};      // if a mask hides keys too (kHidesMore): visible elements of the last scored tile

  __device__ __forceinline__ void wait_pingpong() const {
    if constexpr (C::kHasPingPong) named_sync(kPingPong + group, kPingPongThreads);
  }
  __device__ __forceinline__ void pass_pingpong() const {
    if constexpr (C::kHasPingPong) named_arrive(kPingPong + (group + 1) % kConsumers<C>, kPingPongThreads);
  }

  // Returns null if no work is left.
  __device__ __forceinline__ const Work* next_work() {
    const Work& work = queue.peek();
    queue.advance();
    return work.tile.rows == 0 ? nullptr : &work;
  }

  __device__ __forceinline__ void wait_queries(const Work& work) {
    queries.wait_full(smem.q_full);
    const bool transforms = p.score.q_transform != QTransform::kNone;
    unsigned char* rows = smem.q[queries.stage] + group * 64 * 128;
    if constexpr (Variant<C>::kQuery) vary_queries<C>(p, work, rows, group);
    if (transforms) transform_queries<C>(rows, p.score.q_transform);
    if constexpr (C::kKvBytes == 1) {
      if (transforms) named_sync(kOwnGroup + group, kWarpgroup);
      scale_queries<C>(p, rows, smem.raw.factor + group * 64, work.head);
    }
    if (Variant<C>::kQuery || C::kKvBytes == 1 || transforms) {
      fence_async_shared();
      named_sync(kOwnGroup + group, kWarpgroup);
    }
  }
  __device__ __forceinline__ void wait_keys() const {
    if (rarely(!keys_ready)) keys.wait_full(smem.k_full);
  }
  // Tests the barriers early: a test takes about 50 cycles.
  __device__ __forceinline__ void poll_barriers() {
    values_ready = __all_sync(0xffffffffu, values.is_full(smem.v_full));
    keys_ready = __all_sync(0xffffffffu, keys.is_full(smem.k_full));
  }
  // True if the next step must leave the inner loop. left: the remaining tiles of the work; masked: the last scored tile is
  // masked, and its values are added next.
  __device__ __forceinline__ bool is_special(int left, bool masked) const {
    return left == 0 || masked || !values_ready || !keys_ready;
  }
  // Releases a stage if `any`, by predication instead of a branch.
  template <int kCount>
  __device__ __forceinline__ static void release_if(bool any, uint64_t (&empty)[kCount], Ring<kCount>& ring) {
    __syncwarp();
    if (any && threadIdx.x % 32 == 0) mbarrier_arrive(ring.at(empty));
    if (any) ring.advance();
  }

  // Called outside ping-pong sections: the consumers synchronise here if a masked tile has non-finite values.
  __device__ __forceinline__ void wait_values(const Work* work, int start, bool masked, WgmmaRows<C>& rows) {
    const int stage = values.stage;
    if (rarely(!values_ready)) values.wait_full(smem.v_full);
    if (!rarely(masked)) return;
    if (mapped) {
      mbarrier_wait(smem_address(&smem.v_checked[stage]), checked_parity >> stage & 1);
      checked_parity ^= 1u << stage;
    }
    if constexpr (kReportsNonfinite<C>) {
      if (read_nonfinite<C>(smem, stage)) isolate_nonfinite<C>(p, *work, start, smem.v[stage], shown, rows);
    }
  }

  __device__ __forceinline__ void start_scores(Scores& s) const {
    issue_scores<C>(smem_address(smem.q[queries.stage]) + group * 64 * 128, smem_address(smem.k[keys.stage]), s);
  }
  __device__ __forceinline__ void finish_scores(const VariantRows<C>& varied, int start, Scores& s) const {
    if constexpr (C::kSoftCap) {
#pragma unroll
      for (int i = 0; i < C::kTileKv / 2; ++i) s[i] = soft_capped(s[i], p.score.cap_in * score_factor<C>(smem, fragment_half(i)));
    }
    if constexpr (Variant<C>::kLogits && !Variant<C>::kLine) vary_scores<C>(p, varied, start, s);
    if constexpr (kHidesMore<C>) hide_keys<C>(shown, s);
  }

  // Converts the base to units of scores.
  __device__ __forceinline__ RowScale in_scores(RowScale scale) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) scale.base[half] *= softmax_factor<C>(smem, half);
    return scale;
  }
  // The work after the one whose scores have all been computed, or null if no work is left.
  __device__ __forceinline__ const Work* work_after() {
    if constexpr (!kReleasesEarly) release_if(true, smem.q_empty, queries);
    return next_work();
  }
  // Rare case: the base changes to the maximum of the tile, so the weights are computed again. This never happens in the first
  // step of a work, when o still belongs to the previous work: the base is then already the maximum of this tile.
  __device__ __forceinline__ void rescale(
      const Scores& s, const bool (&has)[2], const ScoreLine<C>& line, Weights& weights, WgmmaRows<C>& rows) const {
    const float exponent[2] = {p.score.log2_scale * softmax_factor<C>(smem, 0), p.score.log2_scale * softmax_factor<C>(smem, 1)};
    float sum[2], shrunk[2];
    update_base<C>(rows.scale, s, exponent, has, shrunk, line);
    compute_weights<C>(s, rows.scale.base, exponent, weights, sum, line);
    rows.rescale(shrunk);
    rows.scale.add(shrunk, sum);
  }

  // Issues the score products of the next tile and the value products of the last one.
  __device__ __forceinline__ void issue_products(Scores& s, const Weights& weights, uint32_t v, WgmmaRows<C>& rows) const {
    wait_pingpong();
    start_scores(s);
    issue_values<C>(weights, v, rows.o);
    pass_pingpong();
  }
  // Waits for the scores, and releases their keys. left: tiles of the work after this one.
  __device__ __forceinline__ void wait_scores(int left, Scores& s) {
    wgmma_wait<1>();
    pin(s);
    warp_arrive_at(keys.at(smem.k_empty));
    values = keys, keys.advance();
    if constexpr (kReleasesEarly) release_if(left == 0, smem.q_empty, queries);
  }
  // One step (an iteration) computes the scores of a tile and adds the values of the previous one, which may belong to the
  // previous work, so that the tensor cores stay busy across works. The first step has no values to add, the last no scores to
  // compute. One copy of the code of each phase keeps compile time down (0.1 s per softmax copy). Rare cases are grouped
  // before and after the inner loop: an untaken branch costs about 10 cycles a step, a taken one about 30.
  __device__ __forceinline__ void run() {
    const Work* next = next_work();  // work whose scores are computed
    if (next == nullptr) return;
    const Work* work = nullptr;  // work whose values are added
    MaskedTiles masked = next->masked;
    int left = 0, start = 0;  // the number of remaining tiles of `next`, and the first key of the current tile
    bool hides = false;       // the current tile is masked
    WgmmaRows<C> rows;
    RowScale ended;  // the bases and sums of `work` when it ends; rows.scale then belongs to `next`
    Scores s;
    Weights weights = {}, early;
    // The V tile and its empty barrier for the next step. The first step multiplies any tile by zero weights and arrives on a
    // dummy barrier, which avoids a branch that would serialise the wgmma groups; its o is cleared.
    uint32_t v = smem_address(smem.k[0]), v_empty = smem_address(&smem.dummy);
    ScoreLine<C> line;  // linear term of the last scored tile
    LargeSlopeRows<C> large_slope;  // rows of `next` with a large slope
#pragma unroll 1
    for (;;) {
      const bool ends = left == 0, first = work == nullptr;  // ends: `work` ends with this step, and `next` begins
      bool more = true, needs_rescale = false, has[2] = {};
      if (rarely(ends || hides || !values_ready)) {
        wait_values(work, start, hides, rows);
        if (ends) {
          ended = in_scores(rows.scale);
          if (!first) next = work_after();
          if (next != nullptr) {
            masked = next->masked;
            left = next->tiles, start = next->last + C::kTileKv;
            find_large_slopes<C>(p, *next, large_slope);
            wait_queries(*next);
          } else {
            add_values<C>(weights, smem_address(smem.v[values.stage]), rows.o);
            more = false;
          }
        }
      }
      if (more) {
        wait_keys();
#pragma unroll 1
        do {
          start -= C::kTileKv;
          hides = masked(start);
          if constexpr (kHidesMore<C>) find_shown<C>(p, *next, start, shown);
          issue_products(s, weights, v, rows);
          VariantRows<C> varied;  // overlaps the products, because the parameters come from global memory
          variant_rows<C>(p, *next, varied);
          score_line<C>(p, varied, start, line);
          wait_scores(--left, s);
          finish_scores(varied, start, s);
          const float exponent[2] = {p.score.log2_scale * softmax_factor<C>(smem, 0), p.score.log2_scale * softmax_factor<C>(smem, 1)};
          if (rarely(hides || ends || large_slope.any)) {
            if (large_slope.any) apply_line<C>(large_slope, line, s);
            if (!kHidesMore<C> && hides) mask_keys<C>(p, *next, start, s);
            if (ends) begin_rows<C>(s, exponent, line, rows.scale);
          }
          float parts[2][2] = {};
          compute_early<C, kEarlyWords>(s, rows.scale.base, exponent, line, early, parts);
          wait_products<C>(ends, weights, rows);
          warp_arrive_at(v_empty);
          v = smem_address(smem.v[values.stage]), v_empty = values.at(smem.v_empty);
          poll_barriers();
          compute_late<C, kEarlyWords>(s, rows.scale.base, exponent, line, early, weights, parts);
          needs_rescale = add_sums(parts, has, rows.scale);
        } while (kInnerLoop && !rarely(needs_rescale || ends || is_special(left, hides)));
      }
      if (rarely(needs_rescale || ends)) {
        if (needs_rescale) rescale(s, has, line, weights, rows);
        if (ends) {
          if (!first) {
            write_group<C>(p, *work, rows.o, ended);
            current.release();
          }
          if (next == nullptr) break;
          rows.clear();
          work = next;
        }
      }
    }
  }
};

template <class C>
__device__ __forceinline__ void consume(const WgmmaPrefillParams& p, WgmmaShared<C>& smem) {
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0) - 1;
  if (C::kHasPingPong && group == 0) named_arrive(kPingPong, kPingPongThreads);  // lets group 0 begin
  Consumer<C>{p.base, smem, C::kKvBytes == 2 && p.mapped, group, WorkQueue<C>(smem), WorkQueue<C>(smem), {}, {}, {}}.run();
  if constexpr (kCutsByLengths<C>) merge_parts<C>(p.base, smem);
}

template <class C>
__device__ __forceinline__ void prefill_sm90(const WgmmaPrefillParams& p) {
  if constexpr (kMergesLater<C>) allow_dependents();
  WgmmaShared<C>& smem = *reinterpret_cast<WgmmaShared<C>*>(dynamic_shared());
  static_assert(sizeof(WgmmaShared<C>) <= WgmmaShared<C>::Tile::kSharedBytes, "the launch allocates less");
  if (threadIdx.x == 0) init_barriers(smem, p.mapped);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    release_registers<C::Tile::kProducerRegisters>();
    const bool mapped = p.mapped;
    if (mapped && threadIdx.x == 0) prefetch_map(p.q_map), prefetch_map(p.k_map), prefetch_map(p.v_map);
    if (threadIdx.x < 32 || (kAsStored<C> && !mapped && threadIdx.x < kCopiers<C>)) {
      Producer<C, false>(p, smem).run();
    } else if constexpr (!kAsStored<C>) {
      if (mapped) Dequantiser<C, true>{p, smem}.run(); else Dequantiser<C, false>{p, smem}.run();
    } else if (!mapped) {
      Producer<C, true>(p, smem).run();
    } else if (threadIdx.x < 64) {
      load_values<C>(p, smem, smem.v, smem.v_full, smem.v_empty);
    } else {
      check_values<C>(p, smem);
    }
  } else {
    acquire_registers<C::Tile::kRegisters>();
    consume<C>(p, smem);
  }
}

}  // namespace opfacade
