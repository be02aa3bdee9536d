// Joins the states of a tile's columns in an order that follows from the numbers of row groups and CTAs alone: the row groups
// of a warp by butterflies, then the warps in order through shared memory, then the CTAs of a cluster in order. Every thread
// gets the results of its columns.
#pragma once
#include "kernels/reduction/join.cuh"

namespace opfacade {

// A row of a tile has kLanes threads with kVecs columns each; kGroups groups of kLanes threads take rows in turn. M has the
// numbers of the strategy. kSlots: states per column in a CTA. kRows: these, and a cluster's result.
template <class M, int kVecs>
struct ColumnTile {
  static constexpr int kThreads = M::kThreads, kCluster = M::kCluster, kSlots = M::kSlots, kVec = kVecs;
  static constexpr int kLanes = kThreads / M::kGroups, kColumns = kLanes * kVec, kRows = kSlots + (kCluster > 1 ? 1 : 0);
  static constexpr int kBytes = M::kShared * kVec;  // of shared memory
  static constexpr bool kJoins = kSlots * kCluster > 1;

  // Offset of a word of a column's state.
  __device__ __forceinline__ static int word_at(int word, int slot, int column) { return (word * kRows + slot) * kColumns + column; }
};

template <class Tile, class State>
__device__ __forceinline__ void put_state(int slot, int column, const State& state) {
  const StateWords<State> words = StateWords<State>::of(state);
#pragma unroll
  for (int i = 0; i < StateWords<State>::kCount; ++i)
    reinterpret_cast<uint32_t*>(dynamic_shared())[Tile::word_at(i, slot, column)] = words.word[i];
}
template <class Tile, class State>
__device__ __forceinline__ State state_at(int slot, int column) {
  StateWords<State> words;
#pragma unroll
  for (int i = 0; i < StateWords<State>::kCount; ++i)
    words.word[i] = reinterpret_cast<const uint32_t*>(dynamic_shared())[Tile::word_at(i, slot, column)];
  return words.state();
}
// Loads the state in slot 0 of another CTA of the cluster.
template <class Tile, class State>
__device__ __forceinline__ State state_of_cta(int rank, int column) {
  const uint32_t base = smem_address(dynamic_shared());
  StateWords<State> words;
#pragma unroll
  for (int i = 0; i < StateWords<State>::kCount; ++i)
    words.word[i] = cluster_load_word(cluster_address(base + 4 * Tile::word_at(i, 0, column), rank));
  return words.state();
}

// first: no earlier stage of this kernel has used shared memory.
template <class R, class Tile>
__device__ __forceinline__ void join_columns(typename R::State (&states)[Tile::kVec], bool first) {
  using State = typename R::State;
  constexpr int kVec = Tile::kVec, kCluster = Tile::kCluster;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % Tile::kLanes;
  const int slot = Tile::kLanes < 32 ? thread / 32 : thread / Tile::kLanes;
  constexpr int kAtOnce = sizeof(State) > 8 ? 1 : 8;  // joins of large states wait for each other, and take long to compile
#pragma unroll kStepsAtOnce<State>
  for (int across = 16; across >= Tile::kLanes; across /= 2) {
#pragma unroll
    for (int j = 0; j < kVec; ++j)
      states[j] = join_in_order<R>((thread & across) == 0, states[j], state_of_lane(states[j], across));  // row groups of a warp
  }
  if constexpr (!Tile::kJoins) return;
  static_assert(!Tile::kJoins || Tile::kRows * Tile::kColumns * sizeof(State) <= Tile::kBytes, "as the binding launches it");
  if (!first) {  // all threads have read the previous stage's results
    if constexpr (kCluster > 1) cluster_sync();
    else __syncthreads();
  }
  if (Tile::kLanes >= 32 || thread % 32 < Tile::kLanes) {
#pragma unroll
    for (int j = 0; j < kVec; ++j) put_state<Tile>(slot, lane * kVec + j, states[j]);
  }
  __syncthreads();
#pragma unroll 1
  for (int column = thread; column < Tile::kColumns; column += Tile::kThreads) {
    State all = state_at<Tile, State>(0, column);
#pragma unroll kAtOnce
    for (int i = 1; i < Tile::kSlots; ++i) all = R::join(all, state_at<Tile, State>(i, column));
    put_state<Tile>(0, column, all);
  }
  if constexpr (kCluster > 1) {
    cluster_sync();
#pragma unroll 1
    for (int column = thread; column < Tile::kColumns; column += Tile::kThreads) {
      State all = state_of_cta<Tile, State>(0, column);
#pragma unroll kAtOnce
      for (int i = 1; i < kCluster; ++i) all = R::join(all, state_of_cta<Tile, State>(i, column));
      put_state<Tile>(Tile::kSlots, column, all);
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kVec; ++j) states[j] = state_at<Tile, State>(kCluster > 1 ? Tile::kSlots : 0, lane * kVec + j);
}

}  // namespace opfacade
