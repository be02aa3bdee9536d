// Attention of many query rows for sm_90a with fp8 products: q, k, v and the weights are e4m3. Blocks and roles are those
// of prefill_wgmma.cuh; V is transposed on its way (prefill_wgmma_fp8_transpose.cuh), and values are added up in f32
// (prefill_wgmma_fp8_math.cuh). Products take half as long, so what limits is the softmax.
#pragma once
#include "kernels/attention/prefill_wgmma.cuh"
#include "kernels/attention/prefill_wgmma_fp8_math.cuh"

namespace opfacade {

template <class C>
struct Fp8Consumer : Consumer<C> {
  using Weights = uint32_t[C::kTileKv / 8];
  // Values are waited for beside what is done to scores, which is worth 3 % and more, unless that takes registers that are not there.
  static constexpr bool kCrowded = C::kSoftCap || (C::kCausal && C::kWindow);
  using Scores = typename Consumer<C>::Scores;
  using Consumer<C>::p, Consumer<C>::smem, Consumer<C>::group, Consumer<C>::held;
  using Consumer<C>::keys, Consumer<C>::values, Consumer<C>::queries, Consumer<C>::values_came;

  const float* q_scale;
  float factor = 1.f;  // of q times that of k, in the work whose scores are made

  __device__ __forceinline__ void await_queries(const Work& work) {
    const float key = p.k_scale == nullptr ? 1.f : p.k_scale[work.head * p.kv_scale_stride];
    factor = never_zero((q_scale == nullptr ? 1.f : *q_scale) * key);
    this->await(smem.q_full[queries.stage], queries.parity);
    if (p.score.q_transform == QTransform::kNone) return;
    transform_fp8_queries<C>(smem.q[queries.stage] + group * 64 * 128, p.score.q_transform);
    fence_async_shared();
    named_sync(kOwnGroup + group, kWarpgroup);
  }
  // Outside a turn: those that compute meet here when a masked tile holds NaN.
  __device__ __forceinline__ void await_values(const Work* work, int start, bool masked, WgmmaRows<C>& rows) {
    if (rarely(!values_came)) this->await(smem.v_full[values.stage], values.parity);
    if constexpr (kReportsWild<C>) {
      if (rarely(masked) && read_wild<C>(smem, values.stage)) isolate_nan<C>(p, *work, start, smem.v[values.stage], rows);
    }
  }
  __device__ __forceinline__ void finish_scores(Scores& s) const {
    if constexpr (C::kSoftCap) {
#pragma unroll
      for (int i = 0; i < C::kTileKv / 2; ++i) s[i] = soft_capped(s[i], p.score.cap_in * factor);
    }
  }
  // What a score is in the units of p.score; a soft cap has taken the factor in already.
  __device__ __forceinline__ float unit() const { return C::kSoftCap ? 1.f : factor; }

  // Sums of a work in the units of p.score: there weights have no headroom.
  __device__ __forceinline__ RowScale finished_scale(const RowScale& scale) const {
    RowScale out = scale;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      out.base[half] = scale.base[half] * unit() - kHeadroom / p.score.log2_scale;
    return out;
  }
  __device__ __forceinline__ void add_last(const Weights& weights, WgmmaRows<C>& rows) const {
    TileOutput<C> t;
    issue_tile<C>(weights, smem_address(smem.v[values.stage]), t);
    wgmma_wait<0>();
    pin(t);
    hold(weights);
    add_tile<C>(t, rows);
  }

  // As Consumer::run, without turns, and with the values of a tile in registers of their own until they are added.
  __device__ __forceinline__ void run() {
    const Work* next = this->take_work();  // whose scores are made
    if (next == nullptr) return;
    const Work* work = nullptr;  // whose values are added
    MaskedTiles masked = next->masked;
    int left = 0, start = 0;  // of the tiles of `next`
    bool hides = false;       // whether the tile at hand is masked
    WgmmaRows<C> rows;
    RowScale ended;
    Scores s;
    TileOutput<C> t;
    Weights weights = {};
#pragma unroll 1
    for (;;) {
      const bool ends = left == 0, first = work == nullptr;
      bool more = true;
      await_values(work, start, hides, rows);
      if (ends) {
        ended = finished_scale(rows.scale);
        if (!first) next = this->take_work();
        if (next != nullptr) {
          masked = next->masked;
          left = next->tiles, start = next->last + C::kTileKv;
          await_queries(*next);
        } else {
          add_last(weights, rows);
          more = false;
        }
      }
      if (more) {
        this->await_keys();
#pragma unroll 1
        for (;;) {
          start -= C::kTileKv;
          hides = masked(start);
          // Before the first values, products with weights 0 that nobody reads: a branch here would end the overlap.
          const uint32_t v = smem_address(first ? smem.k[keys.stage] : smem.v[values.stage]);
          this->start_scores(s);
          issue_tile<C>(weights, v, t);
          wgmma_wait<1>();
          pin(s);
          this->release_keys();
          this->release_if(--left == 0, smem.q_empty, queries);
          const auto await_tile = [&] {
            // Behind branches: see wgmma_wait_all_at.
            if (rarely(ends)) {
              wgmma_wait_all_at<1>();
            } else {
              wgmma_wait_all_at<2>();
            }
            pin(t);
            hold(weights);
            this->release_if(!first, smem.v_empty, values);
            this->look_ahead();
          };
          if constexpr (kCrowded) await_tile();
          finish_scores(s);
          const float exponent = p.score.log2_scale * unit();
          if (rarely(hides || ends)) {
            float shrunk[2];
            if (hides) mask_keys<C>(p, *next, start, s);
            if (ends) rows.scale = RowScale(), follow<C>(rows.scale, s, {exponent, exponent}, {true, true}, shrunk);
          }
          float parts[2][2] = {};
          if constexpr (!kCrowded) await_tile();
          add_tile<C>(t, rows);  // beside the weights
          weigh_fp8<C>(s, rows.scale.base, exponent, weights, parts);
          const bool has[2] = {outgrown(parts[0], rows.scale.base[0]), outgrown(parts[1], rows.scale.base[1])};
          float sum[2];
          // Once more in the rare case that a base moves with the maximum, which is not found before.
          if (rarely(__any_sync(0xffffffffu, has[0] || has[1]))) {
            float shrunk[2];
            follow<C>(rows.scale, s, {exponent, exponent}, has, shrunk);
#pragma unroll
            for (int half = 0; half < 2; ++half) parts[half][0] = parts[half][1] = 0.f;
            weigh_fp8<C>(s, rows.scale.base, exponent, weights, parts);
            rows.rescale(shrunk);
            add_up(parts, sum);
            rows.scale.add(shrunk, sum);
          } else {
            add_up(parts, sum);
            rows.scale.add(sum);
          }
          if (rarely(ends || this->is_special(left, hides))) break;
        }
      }
      if (rarely(ends)) {
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
};

template <class C>
__device__ __forceinline__ void compute_fp8(const WgmmaFp8PrefillParams& p, WgmmaShared<C>& smem) {
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0) - 1;
  Fp8Consumer<C>{{p.base, smem, true, group, WorkQueue<C>(smem), WorkQueue<C>(smem), {}, {}, {}}, p.q_scale}.run();
}

template <class C>
__device__ __forceinline__ void prefill_wgmma_fp8(const WgmmaFp8PrefillParams& p) {
  if constexpr (C::kSplit != SplitMode::kOff) allow_dependents();
  WgmmaShared<C>& smem = *reinterpret_cast<WgmmaShared<C>*>(dynamic_shared());
  static_assert(sizeof(WgmmaShared<C>) <= C::Tile::kSharedBytes, "the launch asks for less");
  if (threadIdx.x == 0) init_barriers(smem, true);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<C::Tile::kLoaderRegisters>();
    if (threadIdx.x == 0) prefetch_map(p.q_map), prefetch_map(p.k_map), prefetch_map(p.v_map);
    if (threadIdx.x < 32) {
      Feeder<C, false>(p, smem).run();
    } else if (threadIdx.x < 64) {
      load_values<C>(p, smem, smem.coming.v, smem.coming.full, smem.coming.empty);
    } else {
      transpose_values<C>(p, smem);
    }
  } else {
    take_registers<C::Tile::kRegisters>();
    compute_fp8<C>(p, smem);
  }
}

}  // namespace opfacade
