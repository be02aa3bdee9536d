// A short request cut over the blocks of a cluster: each leaves its rows in its own shared memory, and all read what they need
// of each other's. It takes about a microsecond where a merge through global memory takes three.
#pragma once
#include "kernels/attention/decode_output.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/cp_async.cuh"
#include "kernels/common/merge.cuh"

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

// What every block of the team says of four columns of a row.
template <class C>
struct TeamColumns {
  float lse[C::kCluster];
  float4 o[C::kCluster];

  __device__ __forceinline__ TeamColumns(const TeamRows<C>& rows, int row, int column) {
    const uint32_t lse_at = smem_address(&rows.logsum[row]), o_at = smem_address(&rows.data[row][column]);
#pragma unroll
    for (int i = 0; i < C::kCluster; ++i) {
      lse[i] = cluster_load(cluster_address(lse_at, i));
      o[i] = cluster_load_4(cluster_address(o_at, i));
    }
  }
};

// In the order of the blocks.
template <class C>
__device__ __forceinline__ void merge_team_columns(const DecodeParams& p, const WorkItem& item, const TeamRows<C>& rows, int row,
                                                   int column) {
  const TeamColumns<C> all(rows, row, column);
  float top = minus_infinity(), total = 0.f;
#pragma unroll
  for (int i = 0; i < C::kCluster; ++i) top = fmaxf(top, all.lse[i]);
  const float base = finite_max(top);
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int i = 0; i < C::kCluster; ++i) {
    const float weight = state_weight(all.lse[i], base);
    total += weight;
    sum.x += weight * all.o[i].x, sum.y += weight * all.o[i].y, sum.z += weight * all.o[i].z, sum.w += weight * all.o[i].w;
  }
  write_columns<C>(p, item, row, column, sum, reciprocal_or_zero(total), merged_lse({base, total}));
}

// By every thread of the cluster. No block leaves while another reads from it.
template <class C>
__device__ __forceinline__ void merge_team(const DecodeParams& p, const WorkItem& item, const TeamRows<C>& rows) {
  constexpr int kColumns = C::kHeadDim / 4, kThreads = C::kWarps * 32;
  cluster_sync();
  for (int i = blockIdx.x % C::kCluster * kThreads + threadIdx.x; i < num_rows<C>(item) * kColumns; i += C::kCluster * kThreads)
    merge_team_columns<C>(p, item, rows, i / kColumns, i % kColumns * 4);
  cluster_sync();
}

}  // namespace opfacade
