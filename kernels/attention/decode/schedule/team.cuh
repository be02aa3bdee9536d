// A short request cut over the blocks of a cluster: each leaves its rows in its own shared memory, and all read what they need
// of each other's. It takes about a microsecond where a merge through global memory takes three.
#pragma once
#include "kernels/attention/decode/schedule/teams.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

template <class C>
struct TeamRows {
  alignas(16) float data[C::kRows][C::kHeadDim];
  float logsum[C::kRows];

  __device__ __forceinline__ void store(int row, int column, float4 o, float factor, float lse) {
    *reinterpret_cast<float4*>(&data[row][column]) = make_float4(o.x * factor, o.y * factor, o.z * factor, o.w * factor);
    if (column == 0) logsum[row] = lse;
  }
};

// What every block of the team says, merged: a part of the run, or all of it.
template <class C>
__device__ __forceinline__ void merge_team_columns(const GlobalRows<C>& to, const TeamRows<C>& rows, int row, int column) {
  const uint32_t lse_at = smem_address(&rows.logsum[row]), o_at = smem_address(&rows.data[row][column]);
  ColumnsOf<C::kCluster> all;
#pragma unroll
  for (int i = 0; i < C::kCluster; ++i) {
    all.lse[i] = cluster_load(cluster_address(lse_at, i));
    all.o[i] = cluster_load_4(cluster_address(o_at, i));
  }
  const MergedColumns merged = merge_in_order(all);
  to.store(row, column, merged.sum, reciprocal_or_zero(merged.total), merged_lse({merged.base, merged.total}));
}

// By every thread of the cluster. No block leaves while another reads from it.
template <class C>
__device__ __forceinline__ void merge_team(const GlobalRows<C>& to, const TeamRows<C>& rows) {
  const TeamColumns<C> own(to.item);
  cluster_sync();
  for (int i = own.first + threadIdx.x % 32; i < own.end; i += own.kStep)
    merge_team_columns<C>(to, rows, own.row(i), own.column(i));
  cluster_arrive();
  if constexpr (C::kTeams > 1) join_teams<C>(to, own);
  cluster_wait();
}

}  // namespace opfacade
