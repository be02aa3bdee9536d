// Attention of one query row per request. The bandwidth of K and V bounds it, so the goal is constant bytes in flight: about
// 200 KB per SM. Each warp runs its own cp.async pipeline without CTA barriers, and the pipeline continues from one work item
// into the next. The query heads of a kv head share an mma tile (decode/state.cuh), so K and V are read once per group. Warps
// take tiles round-robin; their results are merged in warp order at the end of an item.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"
#include "kernels/attention/decode/results.cuh"
#include "kernels/attention/decode/schedule/cluster.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void process_tile(const DecodeParams& p, const WorkItem& item, uint32_t stage, int start,
                                          DecodeState<C>& state) {
  TileScores<C> s;
  TileMath<C>::scores(state, stage, s);
  cap_and_mask<C>(p, item, start, s);
  update_softmax<C>(state, s, p.score.log2_scale);
  TileMath<C>::add_values(state, s, stage + WarpLoader<C>::kTileBytes);
}

// With head_dim 256 and heads as mma rows, the registers do not suffice for the next item, or for all fields of the current
// item.
template <class C>
constexpr bool kFewRegisters = C::kHeadDim == 256 && !HeadLayout<C>::kHeadsAreColumns;

// Issues the loads of the current item and of the next one, at most one item ahead of the computation.
template <class C>
struct Pipeline {
  static constexpr bool kAhead = C::kSplit == SplitMode::kAuto && !kFewRegisters<C>;

  WarpLoader<C> loader;
  Schedule<C, C::kSplit> schedule;
  WorkItem following;
  typename WarpLoader<C>::Opening opening;  // of the item `following`
  bool more = false;                        // the item `following` exists
  bool ahead = false;                       // the loads of `following` have started

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
      __syncwarp();  // the stage has arrived, and every lane has finished with the stage that is refilled next
      const bool filled = loader.oldest_is_filled();
      fetch();
      if (filled) {
        process_tile<C>(p, item, loader.stage(loader.index), start, state);
        start += C::kWarps * WarpLoader<C>::kTokens;
      }
    }
  }
};

// Merges the work unit of an earlier item if this CTA stored the unit's last partial.
template <class C>
__device__ __forceinline__ void merge_deferred(const DecodeParams& p, const Pipeline<C>& pipeline, const volatile Deferred& deferred) {
  if (!deferred.last) return;
  WorkItem item{};
  item.request = deferred.request, item.head = deferred.head, item.unit_start = deferred.unit_start, item.count = deferred.count;
  const Partials partials = pipeline.schedule.partials_of(item);
  merge_partials<C>(GlobalRows<C>{p, item, partials});
}

// Counts a stored partial; the merge follows after the next item. Must be called after a CTA barrier.
template <class C>
__device__ __forceinline__ void defer(const DecodeParams& p, const WorkItem& item, const Partials& partials, volatile Deferred& deferred) {
  if (threadIdx.x != 0) return;
  deferred.request = item.request, deferred.head = item.head, deferred.unit_start = item.unit_start, deferred.count = item.count;
  deferred.last = arrives_last(p, partials);
}

template <class C>
__device__ __forceinline__ void store_item(const DecodeParams& p, const WorkItem& item, const Pipeline<C>& pipeline,
                                           unsigned char* shared, WarpResults<C>& results, bool& pending) {
  const Partials partials = pipeline.schedule.partials_of(item);
  const GlobalRows<C> rows{p, item, partials};
  merge_warps<C>(p, item, shared, results, rows);
  if (C::kPartial && pending) merge_deferred<C>(p, pipeline, results.deferred);
  __syncthreads();  // the partial is stored, and the shared results may be overwritten
  if constexpr (C::kPartial) {
    pending = partials.count > 1 && pipeline.more;
    if (pending) {
      defer<C>(p, item, partials, results.deferred);
    } else if (partials.count > 1) {
      merge_if_last<C>(rows, results.deferred.last);
    }
  }
}

template <class C>
__device__ __forceinline__ void decode(const DecodeParams& p) {
  kernel_prologue(p);
  unsigned char* const shared = dynamic_shared();
  constexpr int kStageBytes = C::kWarps * C::kStages * 2 * WarpLoader<C>::kTileBytes;
  constexpr int kQueryBytes = C::kWarps * DecodeState<C>::kQueryBytes;
  constexpr int kClusterBytes = C::kSplit == SplitMode::kCluster ? sizeof(ClusterRows<C>) : 0;
  ClusterRows<C>& cluster_rows = *reinterpret_cast<ClusterRows<C>*>(shared + kStageBytes + kQueryBytes);
  WarpResults<C>& results = *reinterpret_cast<WarpResults<C>*>(shared + kStageBytes + kQueryBytes + kClusterBytes);
  static_assert(kStageBytes + kQueryBytes + kClusterBytes + sizeof(results) == C::kSharedBytes, "the launch has another layout");
  Pipeline<C> pipeline(p, smem_address(shared));
  WorkItem item;
  DecodeState<C> state;
  state.q_at = smem_address(shared + kStageBytes) + threadIdx.x / 32 * DecodeState<C>::kQueryBytes;
  // with fp8, the conversion would wait for the loads immediately
  constexpr bool kQueryAhead = Pipeline<C>::kAhead && C::kKvBytes == 2;
  bool pending = false, more = pipeline.start(item);
  if (kQueryAhead && more) TileMath<C>::load_query(p, item, state);
  for (; more; more = pipeline.advance(item)) {
    if constexpr (!kQueryAhead) TileMath<C>::load_query(p, item, state);
    reset<C>(state);
    if constexpr (kFewRegisters<C>) save_item(item, results.saved[threadIdx.x / 32]);
    pipeline.attend(p, item, state);
    if constexpr (kFewRegisters<C>) restore_item(results.saved[threadIdx.x / 32], item);
    if (kQueryAhead && pipeline.more) TileMath<C>::load_query(p, pipeline.following, state);
    store_warp_results<C>(state, shared, pipeline.loader.free_stage() - smem_address(shared), results);
    __syncthreads();
    if constexpr (C::kSplit == SplitMode::kCluster) {
      merge_warps<C>(p, item, shared, results, cluster_rows);
    } else {
      store_item<C>(p, item, pipeline, shared, results, pending);
    }
  }
  cp_async_wait<0>();
  if constexpr (C::kSplit == SplitMode::kCluster) {
    const Partials partials = cluster_partials(blockIdx.x / C::kClusterSize, C::kClustersPerUnit);
    merge_cluster<C>(GlobalRows<C>{p, item, partials}, cluster_rows);
  }
}

}  // namespace opfacade
