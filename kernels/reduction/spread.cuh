// A fold of few rows that are too long for registers, over a program M whose stages do not use each other, in two launches. In
// the first, the warps of a CTA's row in `fold_parts` are distributed over all CTAs, for each part of the row. In the second,
// every warp joins all states and computes the outputs of its vectors. Parts, lanes and joins are those of `fold_parts`, so the
// bits are the same.
#pragma once
#include "kernels/reduction/fold.cuh"
#include "kernels/reduction/spread_params.h"

namespace opfacade {

template <class M, Lie kLie>
struct SpreadFold {
  using Params = typename M::Params;
  static constexpr int kWarps = M::kThreads / 32, kCtas = M::kThreads / M::kSpreadThreads;  // of a part
  template <int kStage>
  using ReducerOf = decltype(M::reducer(At<kStage>{}));

  const Params& p;
  const int64_t row;
  const int part, lane;

  __device__ __forceinline__ explicit SpreadFold(const Params& params)
      : p(params), row(blockIdx.x / (p.parts * kCtas)), part(static_cast<int>(blockIdx.x) / kCtas % p.parts),
        lane(static_cast<int>(blockIdx.x) % kCtas * M::kSpreadThreads + static_cast<int>(threadIdx.x)) {}

  // The first launch.
  __device__ __forceinline__ void fold() {
    allow_dependents();
    wait_for_previous();
    Fold<M, kLie> one(p, row, lane);
    if (!one.row.there) return;
    one.begin();
    store_states(one, At<0>{});
  }
  // The second one.
  __device__ __forceinline__ void finish() {
    allow_dependents();
    wait_for_previous();
    Fold<M, kLie> one(p, row, lane);
    if (!one.row.there) return;
    one.begin();
    join(one, At<0>{});
    if (part == 0 && lane == 0) M::store_row(p, one.row.at, one.constants, one.results, one.row.place);
    one.store_part(part);
  }

 private:
  template <int kStage>
  static __device__ constexpr int words_before() {
    if constexpr (kStage == 0) return 0;
    else return words_before<kStage - 1>() + sizeof(typename ReducerOf<kStage - 1>::State) / 4;
  }
  // Address of a stage's state for one warp of the row.
  template <int kStage>
  __device__ __forceinline__ uint32_t* state_of(int warp) const {
    constexpr int kWords = sizeof(typename ReducerOf<kStage>::State) / 4;
    const int64_t each = int64_t{p.parts} * kWarps;
    return p.states + words_before<kStage>() * p.rows * each + (row * each + warp) * kWords;
  }
  template <int kStage>
  __device__ __forceinline__ void store_states(Fold<M, kLie>& one, At<kStage>) const {
    if constexpr (kStage < M::kStages) {
      using Words = StateWords<typename ReducerOf<kStage>::State>;
      const Words found = Words::of(one.template state_of_part<kStage>(part));
      uint32_t* const to = state_of<kStage>(part * kWarps + lane / 32);
      if (lane % 32 == 0) {
#pragma unroll
        for (int i = 0; i < Words::kCount; ++i) to[i] = found.word[i];
      }
      store_states(one, At<kStage + 1>{});
    }
  }
  template <int kStage>
  __device__ __forceinline__ void join(Fold<M, kLie>& one, At<kStage>) const {
    if constexpr (kStage < M::kStages) {
      using R = ReducerOf<kStage>;
      using Words = StateWords<typename R::State>;
      constexpr int kAtOnce = 4;
      typename R::State all = R::none();
#pragma unroll 1
      for (int first = lane % 32; first < p.parts * kWarps; first += 32 * kAtOnce) {
        Words found[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const uint32_t* const from = state_of<kStage>(min(first + 32 * k, p.parts * kWarps - 1));
#pragma unroll
          for (int i = 0; i < Words::kCount; ++i) found[k].word[i] = from[i];
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
          if (first + 32 * k < p.parts * kWarps) all = R::join(all, found[k].state());
      }
      M::keep(At<kStage>{}, one.results, join_lanes<R, 32>(all));
      join(one, At<kStage + 1>{});
    }
  }
};

}  // namespace opfacade
