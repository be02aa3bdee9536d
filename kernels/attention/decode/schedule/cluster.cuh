// Merge in a thread block cluster. Each CTA stores its rows in its own shared memory, and all CTAs read them through
// distributed shared memory, which takes about 1 us; a merge through global memory takes 3 us.
#pragma once
#include "kernels/attention/decode/schedule/shared_unit.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

template <class C>
struct ClusterRows {
  alignas(16) float data[C::kRows][C::kHeadDim];
  float logsum[C::kRows];

  __device__ __forceinline__ void store(int row, int column, float4 o, float factor, float lse) {
    *reinterpret_cast<float4*>(&data[row][column]) = make_float4(o.x * factor, o.y * factor, o.z * factor, o.w * factor);
    if (column == 0) logsum[row] = lse;
  }
};

// Merges four columns of a row over all CTAs of the cluster. The result is a partial of the work unit, or the whole unit.
template <class C>
__device__ __forceinline__ void merge_cluster_columns(const GlobalRows<C>& to, const ClusterRows<C>& rows, int row, int column) {
  const uint32_t lse_at = smem_address(&rows.logsum[row]), o_at = smem_address(&rows.data[row][column]);
  PartialColumns<C::kClusterSize> all;
#pragma unroll
  for (int i = 0; i < C::kClusterSize; ++i) {
    all.lse[i] = cluster_load(cluster_address(lse_at, i));
    all.o[i] = cluster_load_4(cluster_address(o_at, i));
  }
  const MergedColumns merged = merge_in_order(all);
  const float lse = merged_lse({merged.base, merged.total});
  to.store(row, column, merged.sum, reciprocal_or_zero(merged.total), lse);
  if constexpr (C::kClustersPerUnit > 1) store_own_lse<C>(to, row, lse);
}

// Called by every thread of the cluster. No CTA exits while another CTA reads its shared memory.
template <class C>
__device__ __forceinline__ void merge_cluster(const GlobalRows<C>& to, const ClusterRows<C>& rows) {
  const ClusterColumns<C> own(to.item);
  cluster_sync();
  for (int i = own.first + threadIdx.x % 32; i < own.end; i += own.kStep)
    merge_cluster_columns<C>(to, rows, own.row(i), own.column(i));
  cluster_arrive();
  if constexpr (C::kClustersPerUnit > 1) merge_clusters_if_last<C>(to, own);
  cluster_wait();
}

}  // namespace opfacade
