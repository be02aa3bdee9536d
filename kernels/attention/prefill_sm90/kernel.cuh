// Attention of many query rows for sm_90a. Blocks stay and take one tile of rows after another. In a block, warpgroup 0 loads
// (the copy engine does it where it can) and two or three others compute 64 rows each with asynchronous products: while one
// runs its softmax another has the tensor cores, and within one the scores of the next tile are computed beside the
// values of this one. Keys go from last to first, so that masked tiles come first. Query heads of one kv head are packed
// into rows, so a tile is full whatever the group.
#pragma once
#include "kernels/attention/prefill_sm90/producer.cuh"
#include "kernels/attention/prefill_sm90/join.cuh"
#include "kernels/attention/prefill_sm90/nonfinite.cuh"
#include "kernels/attention/prefill_sm90/output.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace opfacade {

template <class C>
struct Consumer {
  using Shared = WgmmaShared<C>;
  using Scores = float[C::kTileKv / 2];
  static constexpr int kWords = C::kTileKv / 4, kEarly = kConsumers<C> == 2 ? kWords / 2 : 0;
  using Weights = uint32_t[kWords];
  // Of two stages of Q the next is there already: then it is early enough to give one back when the next work begins.
  static constexpr bool kReleasesSoon = Shared::kQStages == 1;
  // Whether steps of which nothing special is to be said have a loop of their own: worth 2 % where they are short and keys are there in
  // time, but registers are allotted worse: with 128 dimensions it costs 1.5 %.
  static constexpr bool kStays = C::kHeadDim == 64 && C::kKvBytes == 2;

  const PrefillParams& p;
  WgmmaShared<C>& smem;
  bool mapped;
  int group;  // of those that compute
  WorkQueue<C> queue, held;  // the next work, and the one at hand
  Ring<C::kStages> keys, values;  // values of a tile lie where its keys do: their ring follows that of keys
  Ring<Shared::kQStages> queries;
  bool keys_came = false, values_came = true;  // of the next step; the first has no values
  uint32_t swept_parity = 0;  // a bit for each stage
  WgmmaShown shown = {};      // where more than a range hides keys: of the tile whose scores were computed last

  __device__ __forceinline__ void my_turn() const {
    if constexpr (C::kTurns) named_sync(kTurn + group, kTurnThreads);
  }
  __device__ __forceinline__ void your_turn() const {
    if constexpr (C::kTurns) named_arrive(kTurn + (group + 1) % kConsumers<C>, kTurnThreads);
  }

  // Null when there is no more.
  __device__ __forceinline__ const Work* take_work() {
    const Work& work = queue.see();
    queue.pass();
    return work.tile.rows == 0 ? nullptr : &work;
  }

  __device__ __forceinline__ void await_queries(const Work& work) {
    await(smem.q_full[queries.stage], queries.parity);
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
  __device__ __forceinline__ void await(const uint64_t& full, uint32_t parity) const {
    mbarrier_wait(smem_address(&full), parity);
  }
  __device__ __forceinline__ void await_keys() const {
    if (rarely(!keys_came)) await(smem.k_full[keys.stage], keys.parity);
  }
  // Long before they are needed: a look at a barrier takes fifty cycles.
  __device__ __forceinline__ void look_ahead() {
    values_came = __all_sync(0xffffffffu, mbarrier_is_over(smem_address(&smem.v_full[values.stage]), values.parity));
    keys_came = __all_sync(0xffffffffu, mbarrier_is_over(smem_address(&smem.k_full[keys.stage]), keys.parity));
  }
  // Whether something is to be done before the next step. left: tiles of the work; masked: the tile whose values are added next.
  __device__ __forceinline__ bool is_special(int left, bool masked) const {
    return left == 0 || masked || !values_came || !keys_came;
  }
  // Without a branch, for what is not done at each step.
  template <int kCount>
  __device__ __forceinline__ static void release_if(bool any, uint64_t (&empty)[kCount], Ring<kCount>& ring) {
    __syncwarp();
    if (any && threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(&empty[ring.stage]));
    if (any) ring.advance();
  }

  // Outside a turn: those that compute meet here when a masked tile holds values that are not finite.
  __device__ __forceinline__ void await_values(const Work* work, int start, bool masked, WgmmaRows<C>& rows) {
    const int stage = values.stage;
    if (rarely(!values_came)) await(smem.v_full[stage], values.parity);
    if (!rarely(masked)) return;
    if (mapped) {
      mbarrier_wait(smem_address(&smem.swept[stage]), swept_parity >> stage & 1);
      swept_parity ^= 1u << stage;
    }
    if constexpr (kReportsWild<C>) {
      if (read_wild<C>(smem, stage)) isolate_nonfinite<C>(p, *work, start, smem.v[stage], shown, rows);
    }
  }

  __device__ __forceinline__ void start_scores(Scores& s) const {
    issue_scores<C>(smem_address(smem.q[queries.stage]) + group * 64 * 128, smem_address(smem.k[keys.stage]), s);
  }
  __device__ __forceinline__ void finish_scores(const VariantRows<C>& varied, int start, Scores& s) const {
    if constexpr (C::kSoftCap) {
#pragma unroll
      for (int i = 0; i < C::kTileKv / 2; ++i) s[i] = soft_capped(s[i], p.score.cap_in * score_factor<C>(smem, i % 4 / 2));
    }
    if constexpr (Variant<C>::kLogits && !Variant<C>::kLine) vary_scores<C>(p, varied, start, s);
    if constexpr (kHidesMore<C>) hide_keys<C>(shown, s);
  }

  // One step computes the scores of a tile and adds the values of the one before, which may belong to the work before: so
  // the tensor cores stay busy from work to work. The first step has no values to add, the last no scores to compute.
  // Each thing stands here once: a copy of a softmax takes a tenth of a second to compile. And what few steps do stands together,
  // before and behind the others: each branch that is not taken costs a warp ten cycles of a step, each that is taken thirty.
  __device__ __forceinline__ void run() {
    const Work* next = take_work();  // whose scores are made
    if (next == nullptr) return;
    const Work* work = nullptr;  // whose values are added
    MaskedTiles masked = next->masked;
    int left = 0, start = 0;  // of the tiles of `next`
    bool hides = false;       // whether the tile at hand is masked
    WgmmaRows<C> rows;
    RowScale ended;
    Scores s;
    Weights weights = {}, early;
    // Of the next step: the tile of V, and whom to tell that it has been read. The first has products with weights 0 that nobody reads,
    // and tells a barrier that nobody waits for: branches would end the overlap.
    uint32_t v = smem_address(smem.k[0]), v_empty = smem_address(&smem.nobody);
    ScoreLine<C> line;  // of the tile whose scores were computed last
    SteepRows<C> steep;  // of `next`
#pragma unroll 1
    for (;;) {
      const bool ends = left == 0, first = work == nullptr;
      bool more = true, doubtful = false, has[2] = {};
      if (rarely(ends || hides || !values_came)) {
        await_values(work, start, hides, rows);
        if (ends) {
          ended = rows.scale;  // its base in the units of scores
#pragma unroll
          for (int half = 0; half < 2; ++half) ended.base[half] *= softmax_factor<C>(smem, half);
          if (!first) {
            if constexpr (!kReleasesSoon) release_if(true, smem.q_empty, queries);
            next = take_work();
          }
          if (next != nullptr) {
            masked = next->masked;
            left = next->tiles, start = next->last + C::kTileKv;
            find_steep<C>(p, *next, steep);
            await_queries(*next);
          } else {
            add_values<C>(weights, smem_address(smem.v[values.stage]), rows.o);
            more = false;
          }
        }
      }
      if (more) {
        await_keys();
#pragma unroll 1
        do {
          start -= C::kTileKv;
          hides = masked(start);
          if constexpr (kHidesMore<C>) find_shown<C>(p, *next, start, shown);
          my_turn();
          start_scores(s);
          issue_values<C>(weights, v, rows.o);
          your_turn();
          VariantRows<C> varied;  // beside the products: parameters come from memory
          variant_rows<C>(p, *next, varied);
          score_line<C>(p, varied, start, line);
          wgmma_wait<1>();
          pin(s);
          warp_arrive_at(smem_address(&smem.k_empty[keys.stage]));
          values = keys, keys.advance();
          --left;
          if constexpr (kReleasesSoon) release_if(left == 0, smem.q_empty, queries);
          finish_scores(varied, start, s);
          const float exponent[2] = {p.score.log2_scale * softmax_factor<C>(smem, 0), p.score.log2_scale * softmax_factor<C>(smem, 1)};
          if (rarely(hides || ends || steep.any)) {
            float shrunk[2];
            if (steep.any) settle_steep<C>(steep, line, s);
            if (!kHidesMore<C> && hides) mask_keys<C>(p, *next, start, s);
            if (ends) rows.scale = RowScale(), follow<C>(rows.scale, s, exponent, {true, true}, shrunk, line);
          }
          float parts[2][2] = {}, sum[2];
          // Weights are made before the maximum is known. The last ones take the place of those that the products have read:
          // until these are done the first ones wait in other registers.
          // Not with three warpgroups: there is enough else to do.
          if constexpr (kEarly > 0) {
            weigh<C, 0, kEarly>(s, rows.scale.base, exponent, early, parts, line);
            pin(early);
          }
          // The waits stand behind branches: see wgmma_wait_all_at.
          if (rarely(ends)) {
            wgmma_wait_all_at<1>();
          } else {
            wgmma_wait_all_at<2>();
          }
          pin(rows.o);
          hold(weights);
          warp_arrive_at(v_empty);
          v = smem_address(smem.v[values.stage]), v_empty = smem_address(&smem.v_empty[values.stage]);
          look_ahead();
#pragma unroll
          for (int i = 0; i < kEarly; ++i) weights[i] = early[i];
          weigh<C, kEarly, kWords>(s, rows.scale.base, exponent, weights, parts, line);
          add_up(parts, sum);
#pragma unroll
          for (int half = 0; half < 2; ++half) has[half] = outgrown(sum[half], rows.scale.base[half]);
          doubtful = __any_sync(0xffffffffu, has[0] || has[1]);
#pragma unroll
          for (int half = 0; half < 2; ++half) sum[half] = doubtful ? 0.f : sum[half];
          rows.scale.add(sum);
        } while (kStays && !rarely(doubtful || ends || is_special(left, hides)));
      }
      if (rarely(doubtful || ends)) {
        if (doubtful) {
          // Once more in the rare case that a base moves with the maximum, which is not found before. Not where a work has ended, when
          // o is that of the work before: its base is the maximum of this very tile.
          const float exponent[2] = {p.score.log2_scale * softmax_factor<C>(smem, 0), p.score.log2_scale * softmax_factor<C>(smem, 1)};
          float sum[2], shrunk[2];
          follow<C>(rows.scale, s, exponent, has, shrunk, line);
          weigh<C>(s, rows.scale.base, exponent, weights, sum, line);
          rows.rescale(shrunk);
          rows.scale.add(shrunk, sum);
        }
        if (ends) {
          if (!first) {
            write_group<C>(p, *work, rows.o, ended);
            held.let_go();
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
__device__ __forceinline__ void compute(const WgmmaPrefillParams& p, WgmmaShared<C>& smem) {
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0) - 1;
  if (C::kTurns && group == 0) named_arrive(kTurn, kTurnThreads);  // the first turn
  Consumer<C>{p.base, smem, C::kKvBytes == 2 && p.mapped, group, WorkQueue<C>(smem), WorkQueue<C>(smem), {}, {}, {}}.run();
  if constexpr (kCutsByLengths<C>) join_parts<C>(p.base, smem);
}

template <class C>
__device__ __forceinline__ void prefill_wgmma(const WgmmaPrefillParams& p) {
  if constexpr (kMergesLater<C>) allow_dependents();
  WgmmaShared<C>& smem = *reinterpret_cast<WgmmaShared<C>*>(dynamic_shared());
  static_assert(sizeof(WgmmaShared<C>) <= WgmmaShared<C>::Tile::kSharedBytes, "the launch asks for less");
  if (threadIdx.x == 0) init_barriers(smem, p.mapped);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<C::Tile::kLoaderRegisters>();
    const bool mapped = p.mapped;
    if (mapped && threadIdx.x == 0) prefetch_map(p.q_map), prefetch_map(p.k_map), prefetch_map(p.v_map);
    if (threadIdx.x < 32 || (kAsStored<C> && !mapped && threadIdx.x < kCopiers<C>)) {
      Feeder<C, false>(p, smem).run();
    } else if constexpr (!kAsStored<C>) {
      if (mapped) Widener<C, true>{p, smem}.run(); else Widener<C, false>{p, smem}.run();
    } else if (!mapped) {
      Feeder<C, true>(p, smem).run();
    } else if (threadIdx.x < 64) {
      load_values<C>(p, smem, smem.v, smem.v_full, smem.v_empty);
    } else {
      sweep_values<C>(p, smem);
    }
  } else {
    take_registers<C::Tile::kRegisters>();
    compute<C>(p, smem);
  }
}

}  // namespace opfacade
