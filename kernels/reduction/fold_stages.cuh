// The stages of a fold. Each reduces one value per element, over a row or over a segment.
#pragma once
#include "kernels/reduction/fold_vectors.cuh"

namespace opfacade {

template <class M, Lie kLie>
struct FoldStages : FoldVectors<M, kLie> {
  using Vectors = FoldVectors<M, kLie>;
  using typename Vectors::Row;
  using Vectors::Vectors;
  using Vectors::kHeld, Vectors::kSlots, Vectors::kInputBytes, Vectors::kStreams, Vectors::kAhead, Vectors::kFar, Vectors::kAtOnce;
  using Vectors::p, Vectors::row, Vectors::held, Vectors::constants, Vectors::results;
  using Vectors::waves, Vectors::pieces, Vectors::parts, Vectors::part_of, Vectors::each, Vectors::each_vector, Vectors::inputs;
  // Rounds of join_warps that are unrolled. If the inputs have at most 2 bytes per element, unrolling all rounds would take so
  // many registers that one CTA fewer fits on an SM; with more bytes, a loop would not let one more CTA fit.
  static constexpr int kRoundsAtOnce = kInputBytes <= 2 * M::kVec ? 1 : 32;
  template <int kStage>
  using ReducerOf = decltype(M::reducer(At<kStage>{}));
  // True if fold_twice is used. It depends on the program alone, so all layouts have the same bits. Not with clusters: their
  // barriers take longer than exponentials.
  template <int kStage>
  static constexpr bool kTwice = M::kHeld && M::kCluster == 1 && ReducerOf<kStage>::kFindsMost;
  template <int kStage, int kFolds>
  using States = typename ReducerOf<kStage>::State[kFolds][ReducerOf<kStage>::kChains];

  // Folds this warp's elements of a part of the row.
  template <int kStage>
  __device__ __forceinline__ typename ReducerOf<kStage>::State state_of_part(int part) {
    using R = ReducerOf<kStage>;
    States<kStage, 1> states;
    clear<kStage>(states);
    add_pieces<kStage>(states, 0, 0, part * M::kRun, min((part + 1) * M::kRun, pieces()));
    return join_lanes<R, 32>(joined<R>(states[0]));
  }

  // Evaluates a stage's values of one vector.
  template <int kStage, class T>
  __device__ __forceinline__ void evaluate(T (&x)[M::kVec], int wave, int piece, int count) {
    const auto uniform = M::uniform(At<kStage>{}, constants, results, p);
    if constexpr (kLie == Lie::kAny) {
#pragma unroll
      for (int j = 0; j < M::kVec; ++j) x[j] = T(0);
#pragma unroll 1
      for (int i = 0; i < min(count, M::kVec); ++i) {
        const auto here = row.located(row.segment(wave), row.element(piece) + i * M::kStep);
        const T one = M::value(At<kStage>{}, M::load_one(p, here.at), uniform, constants, results, p, here.place);
#pragma unroll
        for (int j = 0; j < M::kVec; ++j) x[j] = j == i ? one : x[j];  // a variable index would move the array to local memory
      }
    } else {
      const typename M::Inputs in = inputs(wave, piece, count);
#pragma unroll
      for (int i = 0; i < M::kVec; ++i) x[i] = M::value(At<kStage>{}, M::element(in, i), uniform, constants, results, p, row.place);
    }
  }
  // Adds all vectors of a wave; vector i goes to states[i % kFolds].
  template <int kStage, int kFolds>
  __device__ __forceinline__ void add(typename ReducerOf<kStage>::State (&states)[kFolds][ReducerOf<kStage>::kChains], int wave, int first) {
    if constexpr (!kStreams) each_vector(wave, [&](int piece, int count) { add_one<kStage>(states, wave, piece, count, first); });
    else add_pieces<kStage>(states, wave, first, 0, pieces());
  }
  template <int kStage, int kFolds>
  __device__ __forceinline__ void add_one(typename ReducerOf<kStage>::State (&states)[kFolds][ReducerOf<kStage>::kChains], int wave,
                                          int piece, int count, int first) {
    using R = ReducerOf<kStage>;
    typename R::Value x[M::kVec];
    evaluate<kStage>(x, wave, piece, count);
    accumulate<R, M::kVec, M::kStep>(states[kFolds == 1 ? 0 : piece % kFolds], x, count, first + row.element(piece));
  }
  // Adds this lane's vectors [begin, end).
  template <int kStage>
  __device__ __forceinline__ void add_pieces(typename ReducerOf<kStage>::State (&states)[1][ReducerOf<kStage>::kChains], int wave,
                                             int first, int begin, int end) {
    if constexpr (kAhead > 1) {
      const int whole = min(end, p.elements / (M::kLanes * M::kVec));
#pragma unroll 1
      if constexpr (kFar > kAhead) add_batches<kStage, kFar>(states, wave, first, begin, whole);
      add_batches<kStage, kAhead>(states, wave, first, begin, whole);
    }
#pragma unroll 1
    for (; begin < end; ++begin) add_one<kStage>(states, wave, begin, row.count(wave, begin), first);
  }
  // Adds vectors in batches of kCount while at least kCount are left before `whole`, and advances `begin`.
  template <int kStage, int kCount>
  __device__ __forceinline__ void add_batches(typename ReducerOf<kStage>::State (&states)[1][ReducerOf<kStage>::kChains], int wave,
                                              int first, int& begin, int whole) {
#pragma unroll 1
    for (; begin + kCount <= whole; begin += kCount) {
      if (!Row::kShifts || row.template inside<kCount, kAtOnce>(row.element(begin))) {
        add_whole<kStage, kCount>(states[0], wave, begin, first);
      } else {
#pragma unroll 1
        for (int i = 0; i < kCount; ++i) add_one<kStage>(states, wave, begin + i, row.count(wave, begin + i), first);
      }
    }
  }
  // Adds kCount vectors that are whole in every thread, in the order of add_one.
  template <int kStage, int kCount>
  __device__ __forceinline__ void add_whole(typename ReducerOf<kStage>::State (&states)[ReducerOf<kStage>::kChains], int wave,
                                            int piece, int first) {
    using R = ReducerOf<kStage>;
    const auto uniform = M::uniform(At<kStage>{}, constants, results, p);
    typename M::Inputs in[kCount];
    const int count = row.there ? M::kVec : 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (Row::kShifts) row.template fetch_inside<false>(in[i], row.element(piece + i));
      else row.fetch(in[i], wave, piece + i, count);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      typename R::Value x[M::kVec];
#pragma unroll
      for (int j = 0; j < M::kVec; ++j) x[j] = M::value(At<kStage>{}, M::element(in[i], j), uniform, constants, results, p, row.place);
      accumulate<R, M::kVec, M::kStep>(states, x, count, first + row.element(piece + i));
    }
  }

  template <int kStage, int kFolds>
  __device__ __forceinline__ static void clear(typename ReducerOf<kStage>::State (&states)[kFolds][ReducerOf<kStage>::kChains]) {
    using R = ReducerOf<kStage>;
#pragma unroll
    for (int i = 0; i < kFolds * R::kChains; ++i) states[i / R::kChains][i % R::kChains] = R::none();
  }
  // Joins the states of all lanes of the row. kWithin: byte offset of the states inside their slots of shared memory.
  template <int kStage, class R = ReducerOf<kStage>, int kWithin = 0>
  __device__ __forceinline__ typename R::State join_row(typename R::State (&mine)[M::kFolds]) {
    constexpr int kWarps = M::kThreads / 32;
    typename R::State all;
    if constexpr (M::kFolds > 1) all = join_folds<R>(mine);
    else all = join_lanes<R, M::kThreads < 32 ? M::kThreads : 32>(mine[0]);
    if constexpr (M::kFolds > 1 && kWarps == 1) return join_lanes<R, 32, 32 / M::kFolds>(all);
    else if constexpr (kWarps * M::kCluster > 1) {
      static_assert(M::kRowStages * M::kRows * kWarps * M::kFolds <= M::kSlots, "as the binding launches it");
      return join_warps<R, kWarps, M::kCluster, M::kFolds, kRoundsAtOnce, kWithin>(
          all, static_cast<int>(threadIdx.x) % M::kThreads / 32, (kStage * M::kRows + row.slot) * kWarps * M::kFolds);
    } else return all;
  }

  template <int kStage>
  __device__ __forceinline__ typename ReducerOf<kStage>::State fold_once() {
    using R = ReducerOf<kStage>;
    States<kStage, M::kFolds> states;
    clear<kStage>(states);
    each(M::kSegmented ? waves() : 1, [&](int wave) { add<kStage>(states, wave, row.segment(wave) * p.elements); });
    typename R::State mine[M::kFolds];
#pragma unroll
    for (int i = 0; i < M::kFolds; ++i) mine[i] = joined<R>(states[i]);
    return join_row<kStage>(mine);
  }
  // Folds a held row twice, for its maximum and then for its sum, which takes less time than rescaling sums when the maximum
  // grows.
  template <int kStage>
  __device__ __forceinline__ typename ReducerOf<kStage>::State fold_twice() {
    using R = ReducerOf<kStage>;
    using Most = typename R::Most;
    using Total = typename R::Total;
    typename Most::State most[M::kFolds];
    typename Total::State sum[M::kFolds];
#pragma unroll
    for (int i = 0; i < M::kFolds; ++i) most[i] = Most::none(), sum[i] = Total::none();
    each_value<kStage>([&](int piece, const typename R::Value (&x)[M::kVec], int count) {
      typename Most::State& own = most[M::kFolds == 1 ? 0 : piece % M::kFolds];
#pragma unroll
      for (int i = 0; i < M::kVec; ++i)
        if (i < count) own = Most::join(own, {x[i]});
    });
    const typename R::Value top = join_row<kStage, Most>(most).value;
    each_value<kStage>([&](int piece, const typename R::Value (&x)[M::kVec], int count) {
      typename R::Value weights[M::kVec];
#pragma unroll
      for (int i = 0; i < M::kVec; ++i) {
        const typename R::Value weight = R::weight(x[i], top);  // without a branch: outputs reuse most of this computation
        weights[i] = i < count ? weight : 0;
      }
      typename Total::State& own = sum[M::kFolds == 1 ? 0 : piece % M::kFolds];
      own = Total::join(own, {sum_of(weights)});
    });
    return {top, join_row<kStage, Total, kStateBytes / 2>(sum).value};
  }
  // Calls step(index of the vector, its values, number of valid values) for each vector of a row.
  template <int kStage, class F>
  __device__ __forceinline__ void each_value(F step) {
    each(M::kSegmented ? waves() : 1, [&](int wave) {
      each_vector(wave, [&](int piece, int count) {
        typename ReducerOf<kStage>::Value x[M::kVec];
        evaluate<kStage>(x, wave, piece, count);
        step(piece, x, count);
      });
    });
  }

  // Computes a stage of a row that is cut into parts. Even and odd stages have separate slots for states, so a stage overwrites
  // only states that all threads have read.
  template <int kStage>
  __device__ __forceinline__ typename ReducerOf<kStage>::State fold_parts() {
    using R = ReducerOf<kStage>;
    constexpr int kWarps = M::kThreads / 32, kPlaces = kStage % 2 * M::kMaxParts * kWarps;
    static_assert((M::kRowStages < 2 ? M::kRowStages : 2) * M::kMaxParts * kWarps <= M::kSlots, "as the binding launches it");
    const int from = part_of(row.rank);
#pragma unroll 1
    for (int part = from; part < part_of(row.rank + 1); ++part) {
      const typename R::State mine = state_of_part<kStage>(part);
      if (threadIdx.x % 32 == 0) show_state(kPlaces + (part - from) * kWarps + static_cast<int>(threadIdx.x) / 32, mine);
    }
    return join_parts<R, kWarps, M::kClusters>(parts(), p.ctas, kPlaces);
  }

  template <int kStage>
  __device__ __forceinline__ void row_stages(At<kStage>) {
    if constexpr (kStage < M::kRowStages && M::kRun > 0) {
      M::keep(At<kStage>{}, results, fold_parts<kStage>());
      row_stages(At<kStage + 1>{});
    } else if constexpr (kStage < M::kRowStages) {
      if constexpr (kTwice<kStage>) M::keep(At<kStage>{}, results, fold_twice<kStage>());
      else M::keep(At<kStage>{}, results, fold_once<kStage>());
      if constexpr (kHeld && kLie == Lie::kWide) {
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) M::forget_values(held[slot]);
      }
      row_stages(At<kStage + 1>{});
    }
  }
  template <int kStage>
  __device__ __forceinline__ void segment_stages(int wave, At<kStage>) {
    if constexpr (kStage < M::kStages) {
      using R = ReducerOf<kStage>;
      States<kStage, 1> states;
      clear<kStage>(states);
      add<kStage>(states, wave, 0);
      M::keep(At<kStage>{}, results, join_lanes<R, M::kLanes < 32 ? M::kLanes : 32>(joined<R>(states[0])));
      segment_stages(wave, At<kStage + 1>{});
    }
  }
};

}  // namespace opfacade
