// Joins the states of a row's lanes in an order that follows from their number alone: butterflies within warps, then the row's
// warps in all CTAs of its cluster, through shared memory. Every lane gets the result.
#pragma once
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/reduction/fold_params.h"
#include "kernels/reduction/reducers.cuh"

namespace opfacade {

template <class State>
struct StateWords {
  static constexpr int kCount = sizeof(State) / 4;
  static_assert(sizeof(State) % 4 == 0 && sizeof(State) <= kStateBytes, "whole words");
  uint32_t word[kStateBytes / 4];

  __device__ __forceinline__ static StateWords of(const State& state) {
    StateWords found;
    memcpy(found.word, &state, sizeof(State));
    return found;
  }
  __device__ __forceinline__ State state() const {
    State found;
    memcpy(&found, word, sizeof(State));
    return found;
  }
};

template <class State>
__device__ __forceinline__ State state_of_lane(const State& mine, int across) {
  StateWords<State> words = StateWords<State>::of(mine);
#pragma unroll
  for (int i = 0; i < StateWords<State>::kCount; ++i) words.word[i] = __shfl_xor_sync(0xffffffffu, words.word[i], across);
  return words.state();
}

// Returns first ? a : b, word by word: a choice between addresses would move the states to local memory.
template <class State>
__device__ __forceinline__ State chosen(bool first, const State& a, const State& b) {
  StateWords<State> words = StateWords<State>::of(a);
  const StateWords<State> others = StateWords<State>::of(b);
#pragma unroll
  for (int i = 0; i < StateWords<State>::kCount; ++i) words.word[i] = first ? words.word[i] : others.word[i];
  return words.state();
}

// Unrolled steps of a butterfly. Joins of large states wait for each other anyway, and take long to compile.
template <class State>
constexpr int kStepsAtOnce = sizeof(State) > 8 ? 1 : 5;

// Joins two states in the order of their lanes. It selects the operands and has one join: with two, a warp whose lanes differ
// in `first` would execute both.
template <class R>
__device__ __forceinline__ typename R::State join_in_order(bool first, const typename R::State& mine, const typename R::State& other) {
  if constexpr (R::kCommutes) return R::join(mine, other);
  else return R::join(chosen(first, mine, other), chosen(first, other, mine));
}

// Joins every kStep-th of kWidth neighbouring lanes. kWidth and kStep are powers of two.
template <class R, int kWidth, int kStep = 1>
__device__ __forceinline__ typename R::State join_lanes(typename R::State mine) {
#pragma unroll kStepsAtOnce<typename R::State>
  for (int across = kWidth / 2; across >= kStep; across /= 2) {
    mine = join_in_order<R>((threadIdx.x & across) == 0, mine, state_of_lane(mine, across));
  }
  return mine;
}

// Joins the lanes of a warp for each of kFolds states, a power of two, in the order of join_lanes<R, 32>. At each step a lane
// passes half of its states to the other half of the lanes; at the end, lane l has state l * kFolds / 32.
template <class R, int kFolds>
__device__ __forceinline__ typename R::State join_folds(typename R::State (&mine)[kFolds]) {
#pragma unroll
  for (int left = kFolds / 2; left > 0; left /= 2) {
    const int across = 16 * left * 2 / kFolds;
    const bool lower = (threadIdx.x & across) == 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const typename R::State own = chosen(lower, mine[i], mine[i + left]);
      const typename R::State other = state_of_lane(chosen(lower, mine[i + left], mine[i]), across);
      mine[i] = join_in_order<R>(lower, own, other);
    }
  }
  return join_lanes<R, 32 / kFolds>(mine[0]);
}

constexpr int power_of_two_above(int n) { return n <= 1 ? 1 : 2 * power_of_two_above((n + 1) / 2); }

// Joins the kWarps warps that a row has in each of kCluster CTAs. at: first slot of shared memory for this stage and row.
// kFolds: states per warp, in consecutive lanes; each counts as a warp (see FewerLanes). kAtOnce: unrolled rounds. kWithin:
// byte offset of a state inside its slot.
template <class R, int kWarps, int kCluster, int kFolds = 1, int kAtOnce = 32, int kWithin = 0>
__device__ __forceinline__ typename R::State join_warps(typename R::State mine, int warp, int at) {
  using Words = StateWords<typename R::State>;
  constexpr int kAll = kWarps * kFolds * kCluster, kRounds = (kAll + 31) / 32, kWidth = power_of_two_above(kAll < 32 ? kAll : 32);
  const Words words = Words::of(mine);
  unsigned char* const shared = dynamic_shared() + at * kStateBytes + kWithin;
  static_assert(kWithin + sizeof(typename R::State) <= kStateBytes, "as the binding launches it");
  if (threadIdx.x % (32 / kFolds) == 0) {
    const int fold = kFolds == 1 ? 0 : static_cast<int>(threadIdx.x) % 32 / (32 / kFolds);
    uint32_t* const place = reinterpret_cast<uint32_t*>(shared + (fold * kWarps + warp) * kStateBytes);
#pragma unroll
    for (int i = 0; i < Words::kCount; ++i) place[i] = words.word[i];
  }
  if constexpr (kCluster == 1) __syncthreads();
  else cluster_sync();
  typename R::State all = R::none();
  const int lane = static_cast<int>(threadIdx.x) % kWidth;
#pragma unroll kAtOnce
  for (int round = 0; round < kRounds; ++round) {
    const int one = round * 32 + lane;
    if (one >= kAll) continue;
    Words found;
    if constexpr (kCluster == 1) {
      const uint32_t* const place = reinterpret_cast<const uint32_t*>(shared + one * kStateBytes);
#pragma unroll
      for (int i = 0; i < Words::kCount; ++i) found.word[i] = place[i];
    } else {
      const uint32_t there = cluster_address(smem_address(shared + one % kWarps * kStateBytes), one / kWarps);
#pragma unroll
      for (int i = 0; i < Words::kCount; ++i) found.word[i] = __float_as_uint(cluster_load(there + 4 * i));
    }
    all = round == 0 ? found.state() : R::join(all, found.state());
  }
  return join_lanes<R, kWidth>(all);
}

// show_state stores a warp's state in a slot of shared memory; state_of_cta loads one from a CTA of the cluster.
template <class State>
__device__ __forceinline__ void show_state(int at, const State& state) {
  const StateWords<State> words = StateWords<State>::of(state);
  uint32_t* const place = reinterpret_cast<uint32_t*>(dynamic_shared() + at * kStateBytes);
#pragma unroll
  for (int i = 0; i < StateWords<State>::kCount; ++i) place[i] = words.word[i];
}
template <class State>
__device__ __forceinline__ State state_of_cta(int at, int rank, bool alone) {
  StateWords<State> found;
  unsigned char* const place = dynamic_shared() + at * kStateBytes;
  if (alone) {
#pragma unroll
    for (int i = 0; i < StateWords<State>::kCount; ++i) found.word[i] = reinterpret_cast<const uint32_t*>(place)[i];
  } else {
    const uint32_t there = cluster_address(smem_address(place), rank);
#pragma unroll
    for (int i = 0; i < StateWords<State>::kCount; ++i) found.word[i] = cluster_load_word(there + 4 * i);
  }
  return found.state();
}

// First part of a row for CTA `rank` of `ctas`; its parts end before first_part(rank + 1).
__device__ __forceinline__ int first_part(int rank, int parts, int ctas) { return rank * parts / ctas; }

// Joins the states that the kWarps warps of each CTA of a row have stored for its parts, in the order of the parts. at: first
// slot of this stage.
template <class R, int kWarps, bool kClusters>
__device__ __forceinline__ typename R::State join_parts(int parts, int ctas, int at) {
  const bool alone = !kClusters || ctas == 1;
  if (alone) __syncthreads();
  else cluster_sync();
  typename R::State all = R::none();
#pragma unroll 1
  for (int one = static_cast<int>(threadIdx.x) % 32; one < parts * kWarps; one += 32) {
    const int part = one / kWarps, owner = alone ? 0 : ((part + 1) * ctas - 1) / parts;
    const int slot = (part - first_part(owner, parts, ctas)) * kWarps + one % kWarps;
    all = R::join(all, state_of_cta<typename R::State>(at + slot, owner, alone));
  }
  return join_lanes<R, 32>(all);
}

}  // namespace opfacade
