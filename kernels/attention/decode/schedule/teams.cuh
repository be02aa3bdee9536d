// One cluster does not keep a GPU busy, so several teams may share a run. Each leaves its part in the workspace, and whoever of
// them is last merges all. They meet in columns: 32 lanes wait for the same lanes of the other teams and for nobody else.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"

namespace opfacade {

// What several parts say of four columns of a row.
template <int kParts>
struct ColumnsOf {
  float lse[kParts];
  float4 o[kParts];
};

template <int kParts>
__device__ __forceinline__ MergedColumns merge_in_order(const ColumnsOf<kParts>& all) {
  float top = minus_infinity();
#pragma unroll
  for (int i = 0; i < kParts; ++i) top = fmaxf(top, all.lse[i]);
  MergedColumns merged{make_float4(0.f, 0.f, 0.f, 0.f), finite_max(top), 0.f};
  float4& sum = merged.sum;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float weight = state_weight(all.lse[i], merged.base);
    merged.total += weight;
    sum.x += weight * all.o[i].x, sum.y += weight * all.o[i].y, sum.z += weight * all.o[i].z, sum.w += weight * all.o[i].w;
  }
  return merged;
}

// Which columns of an item a warp of the team merges: four a lane, from `first` on and then every kStep. Blocks take
// turns, so that what is read of others' shared memory comes to as many SMs as there are.
template <class C>
struct TeamColumns {
  static constexpr int kOfRow = C::kHeadDim / 4;
  static constexpr int kStep = C::kCluster * C::kWarps * 32;
  int first, end;

  __device__ __forceinline__ explicit TeamColumns(const WorkItem& item)
      : first((threadIdx.x / 32 * C::kCluster + blockIdx.x % C::kCluster) * 32), end(num_rows<C>(item) * kOfRow) {}
  __device__ __forceinline__ int row(int i) const { return i / kOfRow; }
  __device__ __forceinline__ int column(int i) const { return i % kOfRow * 4; }
};

// By a warp, after it stored its columns `first` and on of a team's part: are those of all other teams there?
template <class C>
__device__ __forceinline__ bool count_team_in(const DecodeParams& p, const Parts& parts, int first) {
  constexpr int kCounters = (C::kRows * C::kHeadDim + 127) / 128;  // of a run
  __syncwarp();
  int before = 0;
  if (threadIdx.x % 32 == 0) {
    Counter* const counter = p.counters + parts.first_slot / C::kTeams * kCounters + first / 32;
    before = counted(p, counter, add_one(counter));
    if (before + 1 == C::kTeams) set_back(p, counter);
  }
  before = __shfl_sync(0xffffffffu, before, 0);
  __syncwarp();
  return before + 1 == C::kTeams;
}

// Every part is read back, one's own too: so no bit depends on who is last.
template <class C>
__device__ __forceinline__ void merge_teams_columns(const GlobalRows<C>& rows, int row, int column) {
  const PartRow<C> stored{rows, row};
  ColumnsOf<C::kTeams> all;
#pragma unroll
  for (int i = 0; i < C::kTeams; ++i) all.lse[i] = stored.lse(i), all.o[i] = stored.o(i, column);
  const MergedColumns merged = merge_in_order(all);
  const float lse = merged_lse({merged.base, merged.total});
  write_columns<C>(rows.p, rows.item, row, column, merged.sum, reciprocal_or_zero(merged.total), lse);
}

template <class C>
__device__ __forceinline__ void join_teams(const GlobalRows<C>& rows, const TeamColumns<C>& own) {
#pragma unroll 1
  for (int first = own.first; first < own.end; first += own.kStep) {
    const int i = first + threadIdx.x % 32;
    if (count_team_in<C>(rows.p, rows.parts, first) && i < own.end) merge_teams_columns<C>(rows, own.row(i), own.column(i));
  }
}

}  // namespace opfacade
