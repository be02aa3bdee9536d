// Attention of one query row per request, bound by the bandwidth of K and V. What matters is bytes in flight, always: each
// warp runs its own cp.async pipeline without block barriers and on from one item into the next, about 200 KB an SM. The
// query heads of a kv head share an mma tile (decode/state.cuh), so K and V are read once per group. Warps take tiles in
// turn and are merged in warp order at the end of an item.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"
#include "kernels/attention/decode/results.cuh"
#include "kernels/attention/decode/schedule/team.cuh"

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

// The output of 256 dimensions of many heads leaves no registers to remember two items, nor all of one.
template <class C>
constexpr bool kFewRegisters = C::kHeadDim == 256 && !HeadLayout<C>::kHeadsAreColumns;

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

// Merges the part deferred at an earlier item, if that completed its run.
template <class C>
__device__ __forceinline__ void settle(const DecodeParams& p, const Pipeline<C>& pipeline, const volatile Deferred& deferred) {
  if (!deferred.last) return;
  WorkItem item{};
  item.request = deferred.request, item.head = deferred.head, item.run = deferred.run, item.count = deferred.count;
  const Parts parts = pipeline.schedule.parts_of(item);
  merge_parts<C>(GlobalRows<C>{p, item, parts});
}

// Behind a barrier: the part is stored.
template <class C>
__device__ __forceinline__ void defer(const DecodeParams& p, const WorkItem& item, const Parts& parts, volatile Deferred& deferred) {
  if (threadIdx.x != 0) return;
  deferred.request = item.request, deferred.head = item.head, deferred.run = item.run, deferred.count = item.count;
  deferred.last = count_in(p, parts);
}

template <class C>
__device__ __forceinline__ void store_item(const DecodeParams& p, const WorkItem& item, const Pipeline<C>& pipeline,
                                           unsigned char* shared, WarpResults<C>& results, bool& pending) {
  const Parts parts = pipeline.schedule.parts_of(item);
  const GlobalRows<C> rows{p, item, parts};
  combine<C>(p, item, shared, results, rows);
  if (C::kPartial && pending) settle<C>(p, pipeline, results.deferred);
  __syncthreads();  // the part is stored, and results may be overwritten
  if constexpr (C::kPartial) {
    pending = parts.count > 1 && pipeline.more;
    if (pending) {
      defer<C>(p, item, parts, results.deferred);
    } else if (parts.count > 1) {
      join<C>(rows, results.deferred.last);
    }
  }
}

template <class C>
__device__ __forceinline__ void decode(const DecodeParams& p) {
  begin(p);
  unsigned char* const shared = dynamic_shared();
  constexpr int kStageBytes = C::kWarps * C::kStages * 2 * WarpLoader<C>::kTileBytes;
  constexpr int kQueryBytes = C::kWarps * DecodeState<C>::kQueryBytes;
  constexpr int kTeamBytes = C::kSplit == SplitMode::kCluster ? sizeof(TeamRows<C>) : 0;
  TeamRows<C>& team_rows = *reinterpret_cast<TeamRows<C>*>(shared + kStageBytes + kQueryBytes);
  WarpResults<C>& results = *reinterpret_cast<WarpResults<C>*>(shared + kStageBytes + kQueryBytes + kTeamBytes);
  static_assert(kStageBytes + kQueryBytes + kTeamBytes + sizeof(results) == C::kSharedBytes, "the launch has another layout");
  Pipeline<C> pipeline(p, smem_address(shared));
  WorkItem item;
  DecodeState<C> state;
  state.q_at = smem_address(shared + kStageBytes) + threadIdx.x / 32 * DecodeState<C>::kQueryBytes;
  constexpr bool kQueryAhead = Pipeline<C>::kAhead && C::kKvBytes == 2;  // of fp8, they would be waited for at once
  bool pending = false, more = pipeline.start(item);
  if (kQueryAhead && more) TileMath<C>::load_query(p, item, state);
  for (; more; more = pipeline.advance(item)) {
    if constexpr (!kQueryAhead) TileMath<C>::load_query(p, item, state);
    reset<C>(state);
    if constexpr (kFewRegisters<C>) put_by(item, results.waiting[threadIdx.x / 32]);
    pipeline.attend(p, item, state);
    if constexpr (kFewRegisters<C>) take_up(results.waiting[threadIdx.x / 32], item);
    if (kQueryAhead && pipeline.more) TileMath<C>::load_query(p, pipeline.following, state);
    publish<C>(state, shared, pipeline.loader.free_stage() - smem_address(shared), results);
    __syncthreads();
    if constexpr (C::kSplit == SplitMode::kCluster) {
      combine<C>(p, item, shared, results, team_rows);
    } else {
      store_item<C>(p, item, pipeline, shared, results, pending);
    }
  }
  cp_async_wait<0>();
  if constexpr (C::kSplit == SplitMode::kCluster) {
    const Parts parts = team_parts(blockIdx.x / C::kCluster, C::kTeams);
    merge_team<C>(GlobalRows<C>{p, item, parts}, team_rows);
  }
}

}  // namespace opfacade
