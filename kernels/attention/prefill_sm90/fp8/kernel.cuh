// Attention of many query rows for sm_90a with fp8 products: q, k, v and the weights are e4m3. The CTAs and roles are those of
// prefill_sm90/kernel.cuh. V is transposed in shared memory (prefill_sm90/fp8/transpose.cuh), and o is accumulated in f32
// (prefill_sm90/fp8/math.cuh). Products take half as long as in f16, so the softmax limits the throughput.
#pragma once
#include "kernels/attention/prefill_sm90/kernel.cuh"
#include "kernels/attention/prefill_sm90/fp8/math.cuh"

namespace opfacade {

template <class C>
struct Fp8Consumer : Consumer<C> {
  using Weights = uint32_t[C::kTileKv / 8];
  using Scores = typename Consumer<C>::Scores;
  using Consumer<C>::p, Consumer<C>::smem, Consumer<C>::group, Consumer<C>::current;
  using Consumer<C>::keys, Consumer<C>::values, Consumer<C>::queries;

  const float* q_scale;
  int q_scale_stride;
  // The factor of q times the factor of k, and the exponent scale, of the work whose scores are computed.
  float factor = 1.f, exponent = 0.f;
  uint32_t q = 0;                      // the descriptor word of q of this work

  __device__ __forceinline__ void wait_queries(const Work& work) {
    const float key = p.k_scale == nullptr ? 1.f : p.k_scale[work.head * p.kv_scale_stride];
    factor = never_zero((q_scale == nullptr ? 1.f : q_scale[work.head * q_scale_stride]) * key);
    exponent = p.score.log2_scale * (C::kSoftCap ? 1.f : factor);
    unsigned char* rows = smem.q[queries.stage] + group * 64 * 128;
    q = row_descriptor(smem_address(rows)).low;
    queries.wait_full(smem.q_full);
    if (p.score.q_transform == QTransform::kNone) return;
    transform_fp8_queries<C>(rows, p.score.q_transform);
    fence_async_shared();
    named_sync(kOwnGroup + group, kWarpgroup);
  }
  __device__ __forceinline__ void finish_scores(Scores& s) const {
    if constexpr (C::kSoftCap) {
#pragma unroll
      for (int i = 0; i < C::kTileKv / 2; ++i) s[i] = soft_capped(s[i], p.score.cap_in * factor);
    }
  }
  __device__ __forceinline__ float4& ended() const { return smem.raw_v.ended[threadIdx.x - kWarpgroup]; }
  // Saves the bases and sums of the work that ends. shift is minus the base, as an exponent of 2; the saved base is a score
  // before p.score.scale is applied.
  __device__ __forceinline__ void save_state(const RowScale& scale, const float (&shift)[2]) const {
    const float unit = -1.f / p.score.log2_scale;
    ended() = make_float4(shift[0] * unit, shift[1] * unit, scale.sum[0], scale.sum[1]);
  }
  __device__ __forceinline__ RowScale saved_state() const {
    const float4 aside = ended();
    RowScale scale;
    scale.base[0] = aside.x, scale.base[1] = aside.y, scale.sum[0] = aside.z, scale.sum[1] = aside.w;
    return scale;
  }
  __device__ __forceinline__ void add_last(const Weights& weights, WgmmaRows<C>& rows) const {
    TileOutput<C> t;
    issue_tile<C>(weights, smem_address(smem.v[values.stage]), t);
    wgmma_wait<0>();
    pin(t);
    keep_alive(weights);
    add_tile<C>(t, rows);
  }

  // Tests the barriers early, as Consumer does.
  __device__ __forceinline__ bool is_next_loaded() const {
    return __all_sync(0xffffffffu, values.is_full(smem.v_full) & keys.is_full(smem.k_full));
  }

  // Issues the score products of the next tile and the value products of the last one, and waits for the scores.
  __device__ __forceinline__ void compute_scores(const Weights& weights, uint32_t v, Scores& s, TileOutput<C>& t) {
    issue_fp8_scores<C>(q, smem_address(smem.k[keys.stage]), s);
    issue_tile<C>(weights, v, t);
    wgmma_wait<1>();
    pin(s);
    warp_arrive_at(keys.at(smem.k_empty));
    values = keys, keys.advance();
    finish_scores(s);
  }
  // The consumers synchronise here if a masked tile contains NaN. ready: the values have arrived.
  __device__ __forceinline__ void wait_values(const Work* work, int start, bool ready, bool masked, WgmmaRows<C>& rows) const {
    if (rarely(!ready)) values.wait_full(smem.v_full);
    if constexpr (kReportsNonfinite<C>) {
      if (rarely(masked) && read_nonfinite<C>(smem, values.stage)) isolate_nan<C>(p, *work, start, smem.v[values.stage], rows);
    }
  }
  __device__ __forceinline__ void finish_work(const Work& work, WgmmaRows<C>& rows) {
    write_group<C>(p, work, rows.o, saved_state());
    current.release();
  }
  // Sets the base of rows whose first tile this is.
  __device__ __forceinline__ void begin_rows(const Scores& s, float (&shift)[2], RowScale& scale) const {
    float shrunk[2];
    scale = RowScale(), shift[0] = shift[1] = -minus_infinity();
    update_base<C>(shift, s, exponent, {true, true}, shrunk);
  }
  __device__ __forceinline__ static void add_sums(const float (&parts)[2][2], RowScale& scale) {
    float sum[2];
    sum_parts(parts, sum);
    scale.add(sum);
  }
  // Rare case: the base changes to the maximum of the tile, so the weights are computed again.
  __device__ __forceinline__ void rescale(
      const Scores& s, const bool (&has)[2], float (&shift)[2], Weights& weights, float (&parts)[2][2], WgmmaRows<C>& rows) const {
    float sum[2], shrunk[2];
    update_base<C>(shift, s, exponent, has, shrunk);
    compute_weights_fp8<C>(s, {finite_shift(shift[0]), finite_shift(shift[1])}, exponent, weights, parts);
    rows.rescale(shrunk);
    sum_parts(parts, sum);
    rows.scale.add(shrunk, sum);
  }

  // As Consumer::run, but without ping-pong, and the value products of a tile stay in separate registers until they are added
  // to o.
  __device__ __forceinline__ void run() {
    const Work* next = this->next_work();  // work whose scores are computed
    if (next == nullptr) return;
    const Work* work = nullptr;  // work whose values are added
    MaskedTiles masked = next->masked;
    int left = 0, start = 0;  // the number of remaining tiles of `next`, and the first key of the current tile
    bool hides = false;       // the current tile is masked
    bool ready = false;        // the tiles of the next step have arrived
    // See Consumer.
    uint32_t v = smem_address(smem.k[0]), v_empty = smem_address(&smem.dummy);
    WgmmaRows<C> rows;
    float shift[2] = {0.f, 0.f};  // minus the base of each row, as an exponent of 2
    Scores s;
    TileOutput<C> t;
    Weights weights = {};
#pragma unroll 1
    for (;;) {
      const bool ends = left == 0, first = work == nullptr;
      bool more = true;
      if (!first) wait_values(work, start, ready, hides, rows);
      if (ends) {
        save_state(rows.scale, shift);
        if (!first) {
          this->release_if(true, smem.q_empty, queries);
          next = this->next_work();
        }
        if (next != nullptr) {
          masked = next->masked;
          left = next->tiles, start = next->last + C::kTileKv;
          wait_queries(*next);
        } else {
          add_last(weights, rows);
          more = false;
        }
      }
      if (more) {
        if (rarely(!ready)) keys.wait_full(smem.k_full);
        hides = masked(start - C::kTileKv);
        // The inner loop runs until `until` tiles are left, or until the next tile has not arrived in time.
        const int until = ends || hides ? left - 1 : masked.plain_until(start - C::kTileKv, left, C::kTileKv);
#pragma unroll 1
        for (;;) {
          start -= C::kTileKv, --left;
          compute_scores(weights, v, s, t);
          if (rarely(hides || ends)) {
            if (hides) mask_keys<C>(p, *next, start, s);
            if (ends) begin_rows(s, shift, rows.scale);
            wgmma_wait_all_at<1>();  // behind a branch, for the reason given there
          } else {
            wgmma_wait_all_at<2>();
          }
          pin(t), keep_alive(weights);
          warp_arrive_at(v_empty);
          v = smem_address(smem.v[values.stage]), v_empty = values.at(smem.v_empty);
          ready = is_next_loaded();
          add_tile<C>(t, rows);  // overlaps the weights
          float parts[2][2];
          compute_weights_fp8<C>(s, shift, exponent, weights, parts);
          const bool has[2] = {exceeds_base(parts[0]), exceeds_base(parts[1])};
          const bool special = left == until || !ready;
          if (!rarely(__any_sync(0xffffffffu, has[0] || has[1] || special))) {
            add_sums(parts, rows.scale);
            continue;
          }
          if (rarely(__any_sync(0xffffffffu, has[0] || has[1]))) {
            rescale(s, has, shift, weights, parts, rows);
          } else {
            add_sums(parts, rows.scale);
          }
          if (special) break;
        }
      }
      if (rarely(ends)) {
        if (!first) finish_work(*work, rows);
        if (next == nullptr) break;
        rows.clear(), work = next;
      }
    }
  }
};

template <class C>
__device__ __forceinline__ void consume_fp8(const WgmmaFp8PrefillParams& p, WgmmaShared<C>& smem) {
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0) - 1;
  Fp8Consumer<C>{{p.base, smem, true, group, WorkQueue<C>(smem), WorkQueue<C>(smem), {}, {}, {}}, p.q_scale, p.q_scale_stride}.run();
  if constexpr (kCutsByLengths<C>) merge_parts<C>(p.base, smem);
}

template <class C>
__device__ __forceinline__ void prefill_sm90_fp8(const WgmmaFp8PrefillParams& p) {
  if constexpr (kMergesLater<C>) allow_dependents();
  WgmmaShared<C>& smem = *reinterpret_cast<WgmmaShared<C>*>(dynamic_shared());
  static_assert(sizeof(WgmmaShared<C>) <= C::Tile::kSharedBytes, "the launch allocates less");
  if (threadIdx.x == 0) init_barriers(smem, true);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    release_registers<C::Tile::kProducerRegisters>();
    if (threadIdx.x == 0) prefetch_map(p.q_map), prefetch_map(p.k_map), prefetch_map(p.v_map);
    if (threadIdx.x < 32) {
      Producer<C, false>(p, smem).run();
    } else if (threadIdx.x < 64) {
      load_values<C>(p, smem, smem.raw_v.v, smem.raw_v.full, smem.raw_v.empty);
    } else {
      transpose_values<C>(p, smem);
    }
  } else {
    acquire_registers<C::Tile::kRegisters>();
    consume_fp8<C>(p, smem);
  }
}

}  // namespace opfacade
