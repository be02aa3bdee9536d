// Attention of one query row per request, bound by the bandwidth of K and V. What matters is bytes in flight, always: each
// warp runs its own cp.async pipeline without block barriers and on from one item into the next, about 96 KB a block and
// two blocks an SM. The query heads of a kv head fill the 16 rows of an mma tile (padding is cheap next to memory), so K
// and V are read once per group. Warps take tiles in turn and are merged in warp order at the end of an item.
#pragma once
#include "kernels/attention/decode_join.cuh"
#include "kernels/attention/decode_state.cuh"
#include "kernels/attention/decode_team.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void take_tile(const DecodeParams& p, const WorkItem& item, uint32_t stage, int start,
                                          DecodeState<C>& state) {
  TileScores<C> s;
  TileMath<C>::scores(state, stage, s);
  cap_and_mask<C>(p, item, start, s);
  update_softmax<C>(state, s, p.score.log2_scale);
  TileMath<C>::add_values(state, s, stage + WarpLoader<C>::kTileBytes);
}

// The output of 256 dimensions leaves no registers to remember two items, nor all of one.
template <class C>
constexpr bool kFewRegisters = C::kHeadDim == 256;

// What is loaded runs ahead of what is computed, into the following item but never beyond it.
template <class C>
struct Pipeline {
  static constexpr bool kAhead = C::kSplit == SplitMode::kAuto && !kFewRegisters<C>;

  WarpLoader<C> loader;
  Schedule<C, C::kSplit> schedule;
  WorkItem following;
  typename WarpLoader<C>::Opening opening;  // of the following item
  bool more = false;                        // there is one
  bool ahead = false;                       // and it is being loaded

  __device__ __forceinline__ Pipeline(const DecodeParams& p, uint32_t shared) : loader(p, shared), schedule(p) {}

  __device__ __forceinline__ bool start(WorkItem& item) {
    if (!open_next(item)) return false;
#pragma unroll
    for (int i = 0; i < C::kStages - 1; ++i) fetch();
    if constexpr (kAhead) look_ahead();
    return true;
  }

  __device__ __forceinline__ bool advance(WorkItem& item) {
    if constexpr (!kAhead) return open_next(item);
    if (!more) return false;
    if (!ahead) loader.open(following, opening);
    item = following;
    ahead = false;
    look_ahead();
    return true;
  }

  __device__ __forceinline__ bool open_next(WorkItem& item) {
    if (!schedule.next(item)) return false;
    loader.open(item, loader.opening(item));
    return true;
  }

  __device__ __forceinline__ void look_ahead() {
    more = schedule.next(following);
    if (more) opening = loader.opening(following);
  }

  __device__ __forceinline__ void fetch() {
    loader.fetch();
    if (kAhead && loader.exhausted() && more && !ahead) {
      loader.open(following, opening);
      ahead = true;
    }
  }

  __device__ __forceinline__ void attend(const DecodeParams& p, const WorkItem& item, DecodeState<C>& state) {
    int start = item.begin + threadIdx.x / 32 * WarpLoader<C>::kTokens;
#pragma unroll 1
    while (start < item.end) {
      cp_async_wait<C::kStages - 2>();
      __syncwarp();  // the stage is here, and every lane is done with the one to refill
      const bool filled = loader.oldest_is_filled();
      fetch();
      if (filled) {
        take_tile<C>(p, item, loader.stage(loader.index), start, state);
        start += C::kWarps * WarpLoader<C>::kTokens;
      }
    }
  }
};

// A part whose count is known at the end of the item after it: nobody waits for it in the middle of a stream.
struct Deferred {
  int last;  // it completed its run
  int request, head, run, count;
};

// What of an item is needed again only when it ends, and may wait elsewhere meanwhile.
struct Waiting {
  int request, head, run, count;
};

// Results of the warps; maximum and sum stand in the padding of a row, and so does what is deferred or waits.
template <class C>
struct WarpResults {
  static constexpr int kPitch = C::kHeadDim + 8;  // eight rows at one column lie in different banks
  float o[C::kWarps][C::kRows][kPitch];

  __device__ __forceinline__ float& max(int warp, int row) { return o[warp][row][C::kHeadDim]; }
  __device__ __forceinline__ float& sum(int warp, int row) { return o[warp][row][C::kHeadDim + 1]; }
  __device__ __forceinline__ volatile Deferred& deferred() {
    return *reinterpret_cast<volatile Deferred*>(&o[0][0][C::kHeadDim + 2]);
  }
  // Not over `last`, which another warp may still be looking at.
  __device__ __forceinline__ volatile Waiting& waiting() {
    static_assert(!Pipeline<C>::kAhead, "the rest of what is deferred lies here");
    return *reinterpret_cast<volatile Waiting*>(&o[threadIdx.x / 32][0][C::kHeadDim + 3]);
  }
};

// By each warp for itself.
__device__ __forceinline__ void put_by(const WorkItem& item, volatile Waiting& waiting) {
  if (threadIdx.x % 32 == 0)
    waiting.request = item.request, waiting.head = item.head, waiting.run = item.run, waiting.count = item.count;
  __syncwarp();
}
__device__ __forceinline__ void take_up(const volatile Waiting& waiting, WorkItem& item) {
  item.request = waiting.request, item.head = waiting.head, item.run = waiting.run, item.count = waiting.count;
}

template <class C>
__device__ __forceinline__ void publish(const DecodeState<C>& state, WarpResults<C>& results) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    const float sum = quad_sum(state.sum[half]);
    if (row >= C::kRows) continue;
    results.max(warp, row) = state.max[half];
    results.sum(warp, row) = sum;
    TileMath<C>::store_row(state, half, results.o[warp][row]);
  }
}

template <class C, class Rows>
__device__ __forceinline__ void combine(const DecodeParams& p, const WorkItem& item, WarpResults<C>& results, Rows& rows) {
  constexpr int kColumns = C::kHeadDim / 4;
  for (int i = threadIdx.x; i < num_rows<C>(item) * kColumns; i += C::kWarps * 32) {
    const int row = i / kColumns, column = i % kColumns * 4;
    float row_max = minus_infinity();
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) row_max = fmaxf(row_max, results.max(w, row));
    float sum = 0.f;
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
      const float weight = exp2_approx((results.max(w, row) - finite_max(row_max)) * p.score.log2_scale);
      const float4 part = *reinterpret_cast<const float4*>(&results.o[w][row][column]);
      sum += weight * results.sum(w, row);
      o.x += weight * part.x, o.y += weight * part.y, o.z += weight * part.z, o.w += weight * part.w;
    }
    const float factor = reciprocal_or_zero(sum) * value_factor<C>(p, item);
    rows.store(row, column, o, factor, row_lse(row_max, sum, p.score.scale));
  }
}

// Merges the part deferred at an earlier item, if that completed its run.
template <class C>
__device__ __forceinline__ void settle(const DecodeParams& p, const Pipeline<C>& pipeline, const volatile Deferred& deferred) {
  if (!deferred.last) return;
  WorkItem item{};
  item.request = deferred.request, item.head = deferred.head, item.run = deferred.run, item.count = deferred.count;
  const Parts parts = pipeline.schedule.parts_of(item);
  merge_parts<C>(GlobalRows<C>{p, item, parts});
}

template <class C>
__device__ __forceinline__ void defer(const DecodeParams& p, const WorkItem& item, const Parts& parts, volatile Deferred& deferred) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  deferred.request = item.request, deferred.head = item.head, deferred.run = item.run, deferred.count = item.count;
  deferred.last = count_in(p, parts);
}

template <class C>
__device__ __forceinline__ void store_item(const DecodeParams& p, const WorkItem& item, const Pipeline<C>& pipeline,
                                           WarpResults<C>& results, bool& pending) {
  const Parts parts = pipeline.schedule.parts_of(item);
  const GlobalRows<C> rows{p, item, parts};
  combine<C>(p, item, results, rows);
  if constexpr (C::kPartial) {
    if (pending) settle<C>(p, pipeline, results.deferred());
    pending = parts.count > 1 && pipeline.more;
    if (pending) {
      defer<C>(p, item, parts, results.deferred());
    } else if (parts.count > 1) {
      join<C>(rows, results.deferred().last);
    }
  }
}

template <class C>
__device__ __forceinline__ void decode(const DecodeParams& p) {
  begin(p);
  unsigned char* const shared = dynamic_shared();
  constexpr int kStageBytes = C::kWarps * C::kStages * 2 * WarpLoader<C>::kTileBytes;
  WarpResults<C>& results = *reinterpret_cast<WarpResults<C>*>(shared + kStageBytes);
  TeamRows<C>& team_rows = *reinterpret_cast<TeamRows<C>*>(shared);  // over the stages, which are done with
  Pipeline<C> pipeline(p, smem_address(shared));
  WorkItem item;
  DecodeState<C> state;
  state.q_at = smem_address(shared + kStageBytes + sizeof(WarpResults<C>)) + threadIdx.x / 32 * DecodeState<C>::kQueryBytes;
  constexpr bool kQueryAhead = Pipeline<C>::kAhead && C::kKvBytes == 2;  // of fp8, they would be waited for at once
  bool pending = false, more = pipeline.start(item);
  if (kQueryAhead && more) TileMath<C>::load_query(p, item, state);
  for (; more; more = pipeline.advance(item)) {
    if constexpr (!kQueryAhead) TileMath<C>::load_query(p, item, state);
    reset<C>(state);
    if constexpr (kFewRegisters<C>) put_by(item, results.waiting());
    pipeline.attend(p, item, state);
    if constexpr (kFewRegisters<C>) take_up(results.waiting(), item);
    if (kQueryAhead && pipeline.more) TileMath<C>::load_query(p, pipeline.following, state);
    __syncthreads();  // the item before is written, and of this one all is computed
    publish<C>(state, results);
    __syncthreads();
    if constexpr (C::kSplit == SplitMode::kCluster) {
      combine<C>(p, item, results, team_rows);
    } else {
      store_item<C>(p, item, pipeline, results, pending);
    }
  }
  cp_async_wait<0>();
  if constexpr (C::kSplit == SplitMode::kCluster) merge_team<C>(p, item, team_rows);
}

}  // namespace opfacade
