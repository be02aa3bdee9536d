// Several clusters may share a work unit, because one cluster does not fill a GPU. Each cluster stores a partial in the
// workspace, and the cluster that arrives last merges them. Arrivals are counted for each 128 columns, so a warp depends only
// on the warps of the other clusters that have the same columns.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"

namespace opfacade {

// Loads four columns of a row from each of kPartials partials.
template <int kPartials>
struct PartialColumns {
  float lse[kPartials];
  float4 o[kPartials];
};

template <int kPartials>
__device__ __forceinline__ MergedColumns merge_in_order(const PartialColumns<kPartials>& all) {
  float top = minus_infinity();
#pragma unroll
  for (int i = 0; i < kPartials; ++i) top = fmaxf(top, all.lse[i]);
  MergedColumns merged{make_float4(0.f, 0.f, 0.f, 0.f), finite_max(top), 0.f};
  float4& sum = merged.sum;
#pragma unroll
  for (int i = 0; i < kPartials; ++i) {
    const float weight = state_weight(all.lse[i], merged.base);
    merged.total += weight;
    sum.x += weight * all.o[i].x, sum.y += weight * all.o[i].y, sum.z += weight * all.o[i].z, sum.w += weight * all.o[i].w;
  }
  return merged;
}

// The columns of an item that a warp of the cluster merges: four per lane, starting at `first`, in steps of kStep. The columns
// of the CTAs interleave, so that reads of distributed shared memory are spread over the SMs.
template <class C>
struct ClusterColumns {
  static constexpr int kOfRow = C::kHeadDim / 4;
  static constexpr int kStep = C::kClusterSize * C::kWarps * 32;
  int first, end;

  __device__ __forceinline__ explicit ClusterColumns(const WorkItem& item)
      : first((threadIdx.x / 32 * C::kClusterSize + blockIdx.x % C::kClusterSize) * 32), end(num_rows<C>(item) * kOfRow) {}
  __device__ __forceinline__ int row(int i) const { return i / kOfRow; }
  __device__ __forceinline__ int column(int i) const { return i % kOfRow * 4; }
};

// Several warps share a row of more than 128 columns, and each warp has its own arrival counter. Each warp stores the lse of
// the row (with the same bits), so that the last warp can read the lse whichever warps of other clusters have arrived.
template <class C>
__device__ __forceinline__ void store_own_lse(const GlobalRows<C>& to, int row, float lse) {
  if constexpr (32 % ClusterColumns<C>::kOfRow != 0)
    if (threadIdx.x % 32 == 0) to.store_lse(row, lse);
}

// True if this warp arrives last among the clusters for its 128 columns. Must be called after the warp has stored the columns
// from `first` on.
template <class C>
__device__ __forceinline__ bool cluster_arrives_last(const DecodeParams& p, const Partials& partials, int first) {
  constexpr int kCounters = (C::kRows * C::kHeadDim + 127) / 128;  // counters of one work unit
  __syncwarp();
  int before = 0;
  if (threadIdx.x % 32 == 0) {
    Counter* const counter = p.counters + partials.first_slot / C::kClustersPerUnit * kCounters + first / 32;
    before = previous_arrivals(p, counter, add_one(counter));
    if (before + 1 == C::kClustersPerUnit) reset_counter(p, counter);
  }
  before = __shfl_sync(0xffffffffu, before, 0);
  __syncwarp();
  return before + 1 == C::kClustersPerUnit;
}

// Reads every partial back, including the warp's own, so that the bits do not depend on the order of arrival.
template <class C>
__device__ __forceinline__ void merge_cluster_partials(const GlobalRows<C>& rows, int row, int column) {
  const PartialRow<C> stored{rows, row};
  PartialColumns<C::kClustersPerUnit> all;
#pragma unroll
  for (int i = 0; i < C::kClustersPerUnit; ++i) all.lse[i] = stored.lse(i), all.o[i] = stored.o(i, column);
  const MergedColumns merged = merge_in_order(all);
  const float lse = merged_lse({merged.base, merged.total});
  write_columns<C>(rows.p, rows.item, row, column, merged.sum, reciprocal_or_zero(merged.total), lse);
}

template <class C>
__device__ __forceinline__ void merge_clusters_if_last(const GlobalRows<C>& rows, const ClusterColumns<C>& own) {
#pragma unroll 1
  for (int first = own.first; first < own.end; first += own.kStep) {
    const int i = first + threadIdx.x % 32;
    if (cluster_arrives_last<C>(rows.p, rows.partials, first) && i < own.end) merge_cluster_partials<C>(rows, own.row(i), own.column(i));
  }
}

}  // namespace opfacade
