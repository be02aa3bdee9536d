// A fold of few long rows over a program M whose stages do not use each other. CTAs fold parts of a row, and a second launch
// joins the parts of each row in order. Parts begin at multiples of the chunk, so the bits of a row depend on the chunk, not on
// the number of CTAs.
#pragma once
#include "kernels/elementwise/map.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/reduction/join.cuh"
#include "kernels/elementwise/pairs.cuh"
#include "kernels/reduction/split_params.h"
#include "kernels/reduction/stages.cuh"

namespace opfacade {

// Words per part of the states of all stages before kStage.
template <class M, int kStage>
constexpr int words_before() {
  if constexpr (kStage == 0) return 0;
  else return words_before<M, kStage - 1>() + sizeof(typename ReducerOf<M, kStage - 1>::State) / 4;
}
// Address of a stage's state for one part of a row.
template <class M, int kStage>
__device__ __forceinline__ uint32_t* partial_of(const typename M::Params& p, int64_t row, int64_t part) {
  constexpr int kWords = sizeof(typename ReducerOf<M, kStage>::State) / 4;
  return p.partial + words_before<M, kStage>() * p.rows * p.parts + (row * p.parts + part) * kWords;
}
template <class M, int kStage, class State>
__device__ __forceinline__ void store_partial(const typename M::Params& p, int64_t row, int64_t part, const State& state) {
  const StateWords<State> words = StateWords<State>::of(state);
  uint32_t* const to = partial_of<M, kStage>(p, row, part);
#pragma unroll
  for (int i = 0; i < StateWords<State>::kCount; ++i) to[i] = words.word[i];
}
template <class M, int kStage, class State>
__device__ __forceinline__ State load_partial(const typename M::Params& p, int64_t row, int64_t part) {
  StateWords<State> words;
  const uint32_t* const from = partial_of<M, kStage>(p, row, part);
#pragma unroll
  for (int i = 0; i < StateWords<State>::kCount; ++i) words.word[i] = from[i];
  return words.state();
}

// A CTA folds one part of a row. A thread takes vectors of it, and loads kBatch of them before the first is used.
template <class M, Lie kLie>
struct RowPart : Located<M> {
  using Params = typename M::Params;
  using Located<M>::at, Located<M>::place;
  static constexpr int kVec = M::kVec, kBatch = kLie == Lie::kAny ? 1 : M::kBatch, kStep = M::kThreads * kVec;

  const Params& p;
  const int64_t row, part, begin, end;
  typename M::Constants constants{};
  typename M::Results results{};

  __device__ __forceinline__ explicit RowPart(const Params& params)
      : p(params), row(blockIdx.x / p.parts), part(blockIdx.x % p.parts), begin(part * p.chunk),
        end(min(begin + p.chunk, int64_t{p.elements})) {
    locate_row<M>(*this, p, row, p.kept);
  }

  __device__ __forceinline__ void run() {
    allow_dependents();
    wait_for_previous();
    if (place[0] >= valid_rows(p)) return;
    constants = M::constants(p, at);
    each_pass<M>(At<0>{}, [&](auto first, auto last) { pass<decltype(first)::kStage, decltype(last)::kStage>(); });
  }

 private:
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void pass() {
    StatesOf<M, 0, kFirst, kEnd> all;
    all.each([&](auto stage, auto& states) {
      using R = ReducerOf<M, decltype(stage)::kStage>;
#pragma unroll
      for (int i = 0; i < R::kChains; ++i) states[i] = R::none();
    });
#pragma unroll 1
    for (int64_t first = begin + static_cast<int>(threadIdx.x) * kVec; first < end; first += kBatch * kStep) {
      typename M::Inputs in[kBatch];
      if constexpr (kLie != Lie::kAny) {
        if (is_wide<kLie>(p)) fetch<true>(in, first);
        else fetch<false>(in, first);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        all.each([&](auto stage, auto& states) { add<decltype(stage)::kStage>(states, in[i], first + i * kStep); });
    }
    all.each([&](auto stage, auto& states) { finish<decltype(stage)::kStage>(states); });
  }
  __device__ __forceinline__ int count_from(int64_t first) const {
    const int64_t left = end - first;
    return static_cast<int>(left < 0 ? 0 : left < kVec ? left : kVec);
  }
  template <bool kWide>
  __device__ __forceinline__ void fetch(typename M::Inputs (&in)[kBatch], int64_t first) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      M::template fetch<kWide, !kWide>(in[i], p, at, 0, static_cast<int>(first) + i * kStep, count_from(first + i * kStep));
    if constexpr (kWide) return;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at_first = static_cast<int>(first) + i * kStep, count = count_from(first + i * kStep);
      if (M::is_cut(p, at, 0, at_first, count)) M::template fetch<false>(in[i], p, at, 0, at_first, count);
    }
  }

  template <int kStage, class State, int kChains>
  __device__ __forceinline__ void add(State (&states)[kChains], const typename M::Inputs& in, int64_t first) {
    typename ReducerOf<M, kStage>::Value x[kVec];
    const int count = count_from(first);
    evaluate<kStage>(x, in, first, count);
    accumulate<ReducerOf<M, kStage>>(states, x, count, static_cast<int>(first));
  }
  template <int kStage, class T>
  __device__ __forceinline__ void evaluate(T (&x)[kVec], const typename M::Inputs& in, int64_t first, int count) {
    const auto uniform = M::uniform(At<kStage>{}, constants, results, p);
    if constexpr (kLie == Lie::kAny) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) x[j] = T(0);
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const Located<M> here = located_from<M>(*this, p, first + i);
        const T one = M::value(At<kStage>{}, M::load_one(p, here.at), uniform, constants, results, p, here.place);
#pragma unroll
        for (int j = 0; j < kVec; ++j) x[j] = j == i ? one : x[j];  // a variable index would move the array to local memory
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[i] = M::value(At<kStage>{}, M::element(in, i), uniform, constants, results, p, place);
    }
  }
  template <int kStage, class State, int kChains>
  __device__ __forceinline__ void finish(State (&states)[kChains]) {
    using R = ReducerOf<M, kStage>;
    constexpr int kWarps = M::kThreads / 32;
    static_assert(M::kStages * kWarps <= M::kSlots, "as the binding launches it");
    State all = join_lanes<R, 32>(joined<R>(states));
    all = join_warps<R, kWarps, 1>(all, static_cast<int>(threadIdx.x) / 32, kStage * kWarps);
    if (threadIdx.x == 0) store_partial<M, kStage>(p, row, part, all);
  }
};

// A warp joins the parts of a row: each lane joins every 32nd part in order, then the lanes are joined in order.
template <class M>
struct PartsMerge : Located<M> {
  using Params = typename M::Params;
  using Located<M>::at, Located<M>::place;

  const Params& p;
  const int lane;
  const int64_t row;
  typename M::Constants constants{};
  typename M::Results results{};

  __device__ __forceinline__ explicit PartsMerge(const Params& params)
      : p(params), lane(static_cast<int>(threadIdx.x) % 32), row(int64_t{blockIdx.x} * M::kMergeWarps + threadIdx.x / 32) {}

  __device__ __forceinline__ void run() {
    allow_dependents();
    if (row >= p.rows) return;
    locate_row<M>(*this, p, row, p.kept);
    wait_for_previous();
    if (place[0] >= valid_rows(p)) return;
    constants = M::constants(p, at);
    merge(At<0>{});
    if (lane == 0) M::store_row(p, at, constants, results, place);
  }

 private:
  template <int kStage>
  __device__ __forceinline__ void merge(At<kStage>) {
    if constexpr (kStage < M::kStages) {
      using R = ReducerOf<M, kStage>;
      typename R::State all = R::none();
#pragma unroll 4
      for (int part = lane; part < p.parts; part += 32) all = R::join(all, load_partial<M, kStage, typename R::State>(p, row, part));
      M::keep(At<kStage>{}, results, join_lanes<R, 32>(all));
      merge(At<kStage + 1>{});
    }
  }
};

}  // namespace opfacade
