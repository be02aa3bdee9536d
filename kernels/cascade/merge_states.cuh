// Merge of attention states over disjoint keys. Bound by memory: rows share a warp so that every lane has 16 bytes of each
// state, and four states are asked for before the weights of the row are known, or two of each of some rows. Each state is read
// once, and sums are taken in f32 in the order of the states.
#pragma once
#include "kernels/cascade/merge_states_params.h"
#include "kernels/common/merge.cuh"
#include "kernels/common/run.cuh"

namespace opfacade {

// A lane's pieces of some states that follow each other. What is not there counts as empty.
template <class T, int kVec, int kMany>
struct HeldStates {
  Fetched<T, kVec> part[kMany];
  float lse[kMany];

  __device__ __forceinline__ void load(const RowStates& states, int first, int column) {
#pragma unroll
    for (int j = 0; j < kMany; ++j)
      lse[j] = first + j < states.count ? states.lse[(first + j) * states.lse_stride] : minus_infinity();
#pragma unroll
    for (int j = 0; j < kMany; ++j) {
      const auto* row = static_cast<const typename Element<T>::Bits*>(states.o) + (first + j) * states.o_stride;
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

// The weights of a row by kLanes lanes, to the bit those that row_weights has of 32: a lane stands for every kLanes-th of them.
template <int kLanes>
__device__ __forceinline__ RowWeights weights_by(const RowStates& states) {
  constexpr int kFolds = 32 / kLanes;
  const int lane = threadIdx.x % kLanes;
  float most = minus_infinity(), total[kFolds] = {};
#pragma unroll 1
  for (int s = lane; s < states.count; s += kLanes) most = fmaxf(most, states.lse[s * states.lse_stride]);
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
  const float base = finite_max(most);
#pragma unroll 1
  for (int first = lane; first < states.count; first += 32) {
#pragma unroll
    for (int fold = 0; fold < kFolds; ++fold) {
      const int s = first + fold * kLanes;
      if (s < states.count) total[fold] += state_weight(states.lse[s * states.lse_stride], base);
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

// The same by a lane that has the states itself, two or three.
template <int kStates>
__device__ __forceinline__ RowWeights weights_of(const float (&lse)[kStates]) {
  static_assert(kStates == 2 || kStates == 3, "as 32 lanes add them up");
  const float most = fmaxf(lse[0], lse[1]), base = finite_max(kStates == 3 ? fmaxf(most, lse[kStates - 1]) : most);
  float total = state_weight(lse[0], base);
  if (kStates == 3) total += state_weight(lse[kStates - 1], base);
  return {base, total + state_weight(lse[1], base)};
}

template <class C>
__device__ __forceinline__ void merge_many(const MergeStatesParams& p) {
  using Bits = typename Element<typename C::T>::Bits;
  constexpr int kVec = merge_piece(C::kHeadDim, sizeof(Bits)), kLanes = lanes_of_a_row(C::kHeadDim, sizeof(Bits));
  const int64_t place = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  const bool there = place < p.rows;
  const int64_t row = there ? place : p.rows - 1;  // a warp shuffles as a whole
  const RowStates states{static_cast<const Bits*>(p.states_o) + row * C::kHeadDim, p.states_lse + row,
                         p.rows * C::kHeadDim, p.rows, p.states};
  const int lane = threadIdx.x % kLanes, last = C::kHeadDim - kVec;
  constexpr int kMany = 4;
  HeldStates<typename C::T, kVec, kMany> held;
  held.load(states, 0, min(lane * kVec, last));
  const RowWeights weights = weights_by<kLanes>(states);
  if (!there) return;
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
  if (lane == 0) p.lse[row] = merged_lse(weights);
}

// Up to kStates of them, where a lane has one piece of a row: it asks for those of kRows rows at once. The same bits.
template <class C, int kStates, int kRows>
__device__ __forceinline__ void merge_few(const MergeStatesParams& p) {
  using T = typename C::T;
  using Bits = typename Element<T>::Bits;
  constexpr int kVec = merge_piece(C::kHeadDim, sizeof(Bits)), kLanes = lanes_of_a_row(C::kHeadDim, sizeof(Bits));
  constexpr int kStep = kMergeThreads / kLanes;  // rows
  const int column = threadIdx.x % kLanes * kVec;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kRows * kStep) + threadIdx.x / kLanes;
  if (column >= C::kHeadDim) return;
  HeldStates<T, kVec, kStates> held[kRows];
#pragma unroll
  for (int j = 0; j < kRows; ++j)
#pragma unroll
    for (int s = 0; s < kStates; ++s)
      held[j].lse[s] = first + j * kStep < p.rows && s < p.states ? p.states_lse[s * p.rows + first + j * kStep] : minus_infinity();
  const Bits* states = static_cast<const Bits*>(p.states_o) + first * C::kHeadDim + column;
#pragma unroll
  for (int j = 0; j < kRows; ++j)
#pragma unroll
    for (int s = 0; s < kStates; ++s)
      if (held[j].lse[s] != minus_infinity())
        held[j].part[s] = *reinterpret_cast<const Fetched<T, kVec>*>(states + (s * p.rows + j * kStep) * C::kHeadDim);
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
__device__ __forceinline__ void merge_states(const MergeStatesParams& p) {
  constexpr int kBytes = sizeof(typename Element<typename C::T>::Bits);
  if constexpr (has_whole_rows(C::kHeadDim, kBytes)) {
    if (p.states <= 2) return merge_few<C, 2, rows_of_a_thread(2, C::kHeadDim, kBytes)>(p);
    if (p.states == 3) return merge_few<C, 3, rows_of_a_thread(3, C::kHeadDim, kBytes)>(p);
  }
  merge_many<C>(p);
}

}  // namespace opfacade
