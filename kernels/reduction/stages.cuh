// States of consecutive stages that are joined in one pass over the elements, for programs whose stages do not use each other.
#pragma once
#include "kernels/reduction/row.cuh"

namespace opfacade {

template <class M, int kStage>
using ReducerOf = decltype(M::reducer(At<kStage>{}));

// kWidth: number of states per stage; 0: as many as its reducer has chains.
template <class M, int kWidth, int kStage, int kEnd>
struct StatesOf {
  using Reducer = ReducerOf<M, kStage>;
  typename Reducer::State mine[kWidth == 0 ? Reducer::kChains : kWidth];
  StatesOf<M, kWidth, kStage + 1, kEnd> later;

  // step(stage, its states)
  template <class F>
  __device__ __forceinline__ void each(F step) {
    step(At<kStage>{}, mine);
    later.each(step);
  }
};
template <class M, int kWidth, int kEnd>
struct StatesOf<M, kWidth, kEnd, kEnd> {
  template <class F>
  __device__ __forceinline__ void each(F) {}
};

// Calls pass(first stage, end stage) for each pass over the elements: one pass for all stages (kFused), or one per stage.
template <class M, int kStage, class F>
__device__ __forceinline__ void each_pass(At<kStage>, F pass) {
  if constexpr (kStage < M::kStages) {
    constexpr int kEnd = M::kFused ? M::kStages : kStage + 1;
    pass(At<kStage>{}, At<kEnd>{});
    each_pass<M>(At<kEnd>{}, pass);
  }
}

}  // namespace opfacade
