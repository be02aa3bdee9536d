// Merge of attention states over disjoint keys. The merge is memory-bound: rows share a warp so that each lane has 16 bytes of
// each state, and four states (or two states of several rows) are loaded before the weights of the row are known. Each state is
// read once; sums are f32, in the order of the states.
#pragma once
#include "kernels/cascade/merge_states_params.h"
#include "kernels/common/merge.cuh"
#include "kernels/common/run.cuh"

namespace opfacade {

// CTAs per SM for ragged states; with more CTAs, registers spill.
#if __CUDA_ARCH__ >= 1000
constexpr int kCtasOfRagged = 7;
#else
constexpr int kCtasOfRagged = 9;
#endif

// The states of one row, given as a list of tensors.
struct ListedStates {
  const MergeListParams& p;
  int64_t row;
  int count;
};

__device__ __forceinline__ float lse_of(const RowStates& states, int s) { return states.lse[s * states.lse_stride]; }
__device__ __forceinline__ float lse_of(const ListedStates& states, int s) { return states.p.list_lse[s][states.row]; }

template <class C>
__device__ __forceinline__ auto row_of(const RowStates& states, int s) {
  return static_cast<const typename Element<typename C::T>::Bits*>(states.o) + s * states.o_stride;
}
template <class C>
__device__ __forceinline__ auto row_of(const ListedStates& states, int s) {
  return static_cast<const typename Element<typename C::T>::Bits*>(states.p.list_o[s]) + states.row * C::kHeadDim;
}

// row: an index over rows * heads. Entries of the indptr are clamped to the number of states, so a wrong entry causes no access
// out of bounds.
template <class C>
__device__ __forceinline__ RowStates ragged_states_of_row(const MergeRaggedParams& p, int64_t row) {
  using Bits = typename Element<typename C::T>::Bits;
  const int64_t request = row / p.heads, head = row % p.heads;
  const int first = min(max(p.indptr[request], 0), p.states), stop = min(p.indptr[request + 1], p.states);
  const int64_t place = static_cast<int64_t>(first) * p.heads + head;
  return {static_cast<const Bits*>(p.states_o) + place * C::kHeadDim, p.states_lse + place,
          static_cast<int64_t>(p.heads) * C::kHeadDim, p.heads, max(stop - first, 0)};
}

template <class C>
__device__ __forceinline__ auto states_of_row(const typename C::Params& p, int64_t row) {
  using Bits = typename Element<typename C::T>::Bits;
  if constexpr (C::kListed) return ListedStates{p, row, p.states};
  else if constexpr (C::kRagged) return ragged_states_of_row<C>(p, row);
  else return RowStates{static_cast<const Bits*>(p.states_o) + row * C::kHeadDim, p.states_lse + row, p.rows * C::kHeadDim, p.rows, p.states};
}

// In an in-place merge, the lse of a row is written only after all lanes of the row have read it.
template <class C>
__device__ __forceinline__ void all_have_read() {
  if constexpr (C::kInPlace) __syncwarp();
}

// A lane's chunks of consecutive states, in registers. A missing state counts as empty.
template <class C, int kVec, int kMany>
struct HeldStates {
  using T = typename C::T;
  Fetched<T, kVec> part[kMany];
  float lse[kMany];

  template <class States>
  __device__ __forceinline__ void load(const States& states, int first, int column) {
#pragma unroll
    for (int j = 0; j < kMany; ++j)
      lse[j] = first + j < states.count ? lse_of(states, first + j) : minus_infinity();
#pragma unroll
    for (int j = 0; j < kMany; ++j) {
      const auto* row = row_of<C>(states, first + j);
      if (lse[j] != minus_infinity()) part[j] = *reinterpret_cast<const Fetched<T, kVec>*>(row + column);
    }
  }

  __device__ __forceinline__ void add(const RowWeights& weights, float (&sum)[kVec]) const {
#pragma unroll
    for (int j = 0; j < kMany; ++j) {
      if (lse[j] == minus_infinity()) continue;
      const float weight = state_weight(lse[j], weights.base);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[i] += weight * part[j].at(i);
    }
  }
};

// The weights of a row, computed by kLanes lanes with the bits of row_weights with 32 lanes: lane i computes the sums of lanes
// i, i + kLanes, ...
template <int kLanes, class States>
__device__ __forceinline__ RowWeights weights_by(const States& states) {
  constexpr int kFolds = 32 / kLanes;
  const int lane = threadIdx.x % kLanes;
  float most = minus_infinity(), total[kFolds] = {};
#pragma unroll 1
  for (int s = lane; s < states.count; s += kLanes) most = fmaxf(most, lse_of(states, s));
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
  const float base = finite_max(most);
#pragma unroll 1
  for (int first = lane; first < states.count; first += 32) {
#pragma unroll
    for (int fold = 0; fold < kFolds; ++fold) {
      const int s = first + fold * kLanes;
      if (s < states.count) total[fold] += state_weight(lse_of(states, s), base);
    }
  }
#pragma unroll
  for (int half = kFolds / 2; half > 0; half /= 2) {
#pragma unroll
    for (int fold = 0; fold < half; ++fold) total[fold] += total[fold + half];
  }
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) total[0] += __shfl_xor_sync(0xffffffffu, total[0], mask);
  return {base, total[0]};
}

// The same, computed by one lane that has all states of the row (two or three).
template <int kStates>
__device__ __forceinline__ RowWeights weights_of(const float (&lse)[kStates]) {
  static_assert(kStates == 2 || kStates == 3, "as 32 lanes add them up");
  const float most = fmaxf(lse[0], lse[1]), base = finite_max(kStates == 3 ? fmaxf(most, lse[kStates - 1]) : most);
  float total = state_weight(lse[0], base);
  if (kStates == 3) total += state_weight(lse[kStates - 1], base);
  return {base, total + state_weight(lse[1], base)};
}

template <class C>
__device__ __forceinline__ void merge_many(const typename C::Params& p) {
  using Bits = typename Element<typename C::T>::Bits;
  constexpr int kVec = merge_piece(C::kHeadDim, sizeof(Bits)), kLanes = lanes_of_a_row(C::kHeadDim, sizeof(Bits));
  const int64_t place = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  const bool there = place < p.rows;
  // lanes without a row take part in the warp's shuffles, so they read the last row
  const int64_t row = there ? place : p.rows - 1;
  const auto states = states_of_row<C>(p, row);
  const int lane = threadIdx.x % kLanes, last = C::kHeadDim - kVec;
  constexpr int kMany = 4;
  HeldStates<C, kVec, kMany> held;
  held.load(states, 0, min(lane * kVec, last));
  const RowWeights weights = weights_by<kLanes>(states);
  if (!there) return all_have_read<C>();
  for (int column = lane * kVec; column < C::kHeadDim;) {
    float sum[kVec] = {};
    held.add(weights, sum);
    for (int first = kMany; first < states.count; first += kMany) {
      held.load(states, first, column);
      held.add(weights, sum);
    }
    store_merged<typename C::T>(static_cast<Bits*>(p.o) + row * C::kHeadDim, column, sum, reciprocal_or_zero(weights.total), true);
    column += kLanes * kVec;
    if (kLanes * kVec < C::kHeadDim && column < C::kHeadDim) held.load(states, 0, column);
  }
  all_have_read<C>();
  if (lane == 0) p.lse[row] = merged_lse(weights);
}

// lse_at(s) returns the lse of a row in state s. piece_at(s, rows) returns the chunk of state s that is `rows` rows after
// `place`.
template <class C>
__device__ __forceinline__ float lse_at(const typename C::Params& p, int s, int64_t row) {
  if constexpr (C::kListed) return p.list_lse[s][row];
  else return p.states_lse[s * p.rows + row];
}
template <class C>
__device__ __forceinline__ auto piece_at(const typename C::Params& p, int s, int64_t place, int rows) {
  using Bits = typename Element<typename C::T>::Bits;
  if constexpr (C::kListed) return static_cast<const Bits*>(p.list_o[s]) + place + rows * C::kHeadDim;
  else return static_cast<const Bits*>(p.states_o) + place + (s * p.rows + rows) * C::kHeadDim;
}

// Merges up to kStates states if a lane has one chunk of a row, with the loads of kRows rows issued together. The bits are the
// same.
template <class C, int kStates, int kRows>
__device__ __forceinline__ void merge_few(const typename C::Params& p) {
  using T = typename C::T;
  using Bits = typename Element<T>::Bits;
  constexpr int kVec = merge_piece(C::kHeadDim, sizeof(Bits)), kLanes = lanes_of_a_row(C::kHeadDim, sizeof(Bits));
  constexpr int kStep = kMergeThreads / kLanes;  // distance between a thread's rows
  const int column = threadIdx.x % kLanes * kVec;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kRows * kStep) + threadIdx.x / kLanes;
  if (column >= C::kHeadDim) return all_have_read<C>();
  HeldStates<C, kVec, kStates> held[kRows];
#pragma unroll
  for (int j = 0; j < kRows; ++j)
#pragma unroll
    for (int s = 0; s < kStates; ++s)
      held[j].lse[s] = first + j * kStep < p.rows && s < p.states ? lse_at<C>(p, s, first + j * kStep) : minus_infinity();
  const int64_t place = first * C::kHeadDim + column;
#pragma unroll
  for (int j = 0; j < kRows; ++j)
#pragma unroll
    for (int s = 0; s < kStates; ++s)
      if (held[j].lse[s] != minus_infinity())
        held[j].part[s] = *reinterpret_cast<const Fetched<T, kVec>*>(piece_at<C>(p, s, place, j * kStep));
  all_have_read<C>();
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    const int64_t row = first + j * kStep;
    if (row >= p.rows) break;
    const RowWeights weights = weights_of(held[j].lse);
    float sum[kVec] = {};
    held[j].add(weights, sum);
    store_merged<T>(static_cast<Bits*>(p.o) + row * C::kHeadDim, column, sum, reciprocal_or_zero(weights.total), true);
    if (column == 0) p.lse[row] = merged_lse(weights);
  }
}

template <class C>
__device__ __forceinline__ void merge_states(const typename C::Params& p) {
  constexpr int kBytes = sizeof(typename Element<typename C::T>::Bits);
  if constexpr (has_whole_rows(C::kHeadDim, kBytes) && !C::kRagged) {
    if (p.states <= 2) return merge_few<C, 2, rows_of_a_thread(2, C::kHeadDim, kBytes)>(p);
    if (p.states == 3) return merge_few<C, 3, rows_of_a_thread(3, C::kHeadDim, kBytes)>(p);
  }
  merge_many<C>(p);
}

}  // namespace opfacade
