// A fold over a program M that the template prints: the row is read, each stage joins a value of its elements, outputs are made
// of the elements and the results. A row that fits is kept in registers, so that it is read once; a longer one is read again by
// each stage. Which lane has which element, and in which order states are joined, follows from the length of a row and from
// dtypes, and so do its bits. Other rows and strides do not change them.
//
// Stages along whole rows come first; those along segments are made with the outputs, wave by wave.
#pragma once
#include "kernels/elementwise/map.cuh"
#include "kernels/elementwise/pairs.cuh"
#include "kernels/reduction/fold_params.h"
#include "kernels/reduction/join.cuh"
#include "kernels/reduction/row.cuh"

namespace opfacade {

constexpr int kMaxParts = 32;  // of a row that is read again

template <class M, Lie kLie>
struct Fold {
  using Params = typename M::Params;
  using Row = FoldRow<M, kLie>;
  static constexpr bool kHeld = M::kHeld && (kLie == Lie::kWide || (kLie == Lie::kDense && M::kHeldIfDense));
  static constexpr int kSlots = kHeld ? M::kWaves * M::kPieces : 1;
  // Vectors of a thread that are loaded before the first is used, where a row is too long for registers.
  static constexpr int kInputBytes = sizeof(typename M::Inputs);
  static constexpr bool kStreams = !kHeld && (kLie == Lie::kWide || (kLie == Lie::kDense && !M::kHeld && (Row::kShifts || M::kStep > 1))) && !M::kSegmented;
  // Rounds of a join that are unrolled. Where an element has at most 2 bytes, all of them would take so many registers that one
  // CTA less is on an SM; where it has more, a loop brings no CTA more.
  static constexpr int kRoundsAtOnce = kInputBytes <= 2 * M::kVec ? 1 : 32;
  static constexpr int kAhead = !kStreams || kInputBytes > 32 ? 1 : kInputBytes > 16 ? 2 : 4;
  static constexpr int kFar = kAhead < 4 || M::kFar == 0 || M::kRun < M::kFar ? kAhead : M::kFar / (Row::kShifts ? 2 : 1);
  static constexpr int kAtOnce = M::kLanes * M::kVec;  // elements of a piece
  template <int kStage>
  using ReducerOf = decltype(M::reducer(At<kStage>{}));
  // By the program alone, so that all paths have the same bits. Not over clusters, whose barriers take longer than
  // exponentials.
  template <int kStage>
  static constexpr bool kTwice = M::kHeld && M::kCluster == 1 && ReducerOf<kStage>::kFindsMost;
  template <int kStage, int kFolds>
  using States = typename ReducerOf<kStage>::State[kFolds][ReducerOf<kStage>::kChains];

  const Params& p;
  Row row;
  typename M::Inputs held[kSlots];
  typename M::Constants constants{};
  typename M::Results results{};

  __device__ __forceinline__ explicit Fold(const Params& params) : p(params), row(params) {}

  // A row in shared memory.
  __device__ __forceinline__ Fold(const Params& params, int64_t number, int own, bool there)
      : p(params), row(params, number, own, there) {}
  // Lane `lane` of a row, in whatever CTA, for those who call what follows instead of `run`.
  __device__ __forceinline__ Fold(const Params& params, int64_t number, int lane) : p(params), row(params, number, lane) {}

  __device__ __forceinline__ void begin() { constants = M::constants(p, row.at); }
  // The state of the warp for a part of the row.
  template <int kStage>
  __device__ __forceinline__ typename ReducerOf<kStage>::State state_of_part(int part) {
    using R = ReducerOf<kStage>;
    States<kStage, 1> states;
    clear<kStage>(states);
    add_pieces<kStage>(states, 0, 0, part * M::kRun, min((part + 1) * M::kRun, pieces()));
    return join_lanes<R, 32>(joined<R>(states[0]));
  }
  // The outputs of its vectors there.
  __device__ __forceinline__ void store_part(int part) {
    if constexpr (M::kFullOutputs) {
      const auto uniform = M::uniform(At<M::kStages>{}, constants, results, p);
      store_backwards(uniform, 0, part * M::kRun, min((part + 1) * M::kRun, pieces()));
    }
  }

  __device__ __forceinline__ void run() {
    if constexpr (M::kWholePieces && M::kRows == 1) {
      if (!row.there) return;  // nor has any other thread of the CTA or cluster a row
    }
    if (row.there) constants = M::constants(p, row.at);
    if constexpr (kHeld) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int wave = slot / M::kPieces, piece = slot % M::kPieces;
        row.fetch(held[slot], wave, piece, row.count(wave, piece));
      }
      if constexpr (Row::kShifts) mend_held();
    }
    allow_dependents();
    first_late(0);  // in flight while the stages are computed
    row_stages(At<0>{});
    if (row.leads()) M::store_row(p, row.at, constants, results, row.place);
    each(M::kSegmented ? waves() : 1, [&](int wave) {
      segment_stages(wave, At<M::kRowStages>{});
      store(wave);
    });
    if constexpr (M::kRowStages > 0) leave();
  }

 private:
  // Others read what this CTA shows.
  __device__ __forceinline__ void leave() const {
    if constexpr (M::kCluster > 1) cluster_arrive(), cluster_wait();
    else if (M::kRun > 0 && M::kClusters && p.ctas > 1) cluster_arrive(), cluster_wait();
  }
  // Vectors that touch memory outside of a tensor, by elements: in a loop, since few rows have any.
  __device__ __forceinline__ void mend_held() {
    static_assert(kSlots <= 32, "a bit each");
    uint32_t cut = 0;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int wave = slot / M::kPieces, piece = slot % M::kPieces;
      if (row.is_cut(wave, piece, row.count(wave, piece))) cut |= 1u << slot;
    }
#pragma unroll 1
    for (int slot = 0; cut != 0; ++slot, cut >>= 1) {
      if ((cut & 1) == 0) continue;
      const int wave = slot / M::kPieces, piece = slot % M::kPieces;
      typename M::Inputs found{};
      row.fetch_elements(found, wave, piece, row.count(wave, piece));
#pragma unroll
      for (int i = 0; i < kSlots; ++i)
        if (i == slot) M::replace(held[i], found);
    }
  }

  __device__ __forceinline__ int waves() const { return kHeld ? M::kWaves : (p.segments + Row::kAtOnce - 1) / Row::kAtOnce; }
  __device__ __forceinline__ int pieces() const {
    return kHeld ? M::kPieces : (p.elements + kAtOnce - 1) / kAtOnce;
  }
  // A row that is read again is cut into parts of kRun pieces, which are folded one by one: so its bits do not depend on how
  // many CTAs share it. These are the pieces and parts of this CTA.
  __device__ __forceinline__ int parts() const { return (pieces() + M::kRun - 1) / M::kRun; }
  __device__ __forceinline__ int part_of(int rank) const { return first_part(rank, parts(), p.ctas); }
  __device__ __forceinline__ int first_piece() const { return M::kRun == 0 ? 0 : part_of(row.rank) * M::kRun; }
  __device__ __forceinline__ int end_piece() const {
    return M::kRun == 0 ? pieces() : min(part_of(row.rank + 1) * M::kRun, pieces());
  }
  // In registers, everything is unrolled.
  template <class F>
  __device__ __forceinline__ static void each(int count, F step) {
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < count; ++i) step(i);
    } else {
#pragma unroll 1
      for (int i = 0; i < count; ++i) step(i);
    }
  }
  // The vectors of a wave: step(piece, count).
  template <class F>
  __device__ __forceinline__ void each_vector(int wave, F step) {
    if constexpr (M::kRun == 0) {
      each(pieces(), [&](int piece) { step(piece, row.count(wave, piece)); });
    } else {
#pragma unroll 1
      for (int piece = first_piece(); piece < end_piece(); ++piece) step(piece, row.count(wave, piece));
    }
  }
  __device__ __forceinline__ typename M::Inputs inputs(int wave, int piece, int count) {
    if constexpr (kHeld) return held[wave * M::kPieces + piece];
    typename M::Inputs in{};
    row.fetch(in, wave, piece, count);
    row.mend(in, wave, piece, count);
    return in;
  }

  // The values of one vector.
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
        for (int j = 0; j < M::kVec; ++j) x[j] = j == i ? one : x[j];  // an index that is not constant would need memory
      }
    } else {
      const typename M::Inputs in = inputs(wave, piece, count);
#pragma unroll
      for (int i = 0; i < M::kVec; ++i) x[i] = M::value(At<kStage>{}, M::element(in, i), uniform, constants, results, p, row.place);
    }
  }
  // Piece i goes to the states i % kFolds.
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
  // The pieces begin .. end - 1.
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
  // Batches of kCount pieces, from `begin` on, which ends where less are left.
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
  // Vectors that are whole in every thread, in the same order as one by one.
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
  // kWithin: offset in bytes of these states from the state in shared memory.
  template <int kStage, class R = ReducerOf<kStage>, int kWithin = 0>
  __device__ __forceinline__ typename R::State join_row(typename R::State (&mine)[M::kFolds]) {
    constexpr int kWarps = M::kThreads / 32;
    typename R::State all;
    if constexpr (M::kFolds > 1) all = join_folds<R>(mine);
    else all = join_lanes<R, M::kThreads < 32 ? M::kThreads : 32>(mine[0]);
    if constexpr (M::kFolds > 1 && kWarps == 1) return join_lanes<R, 32, 32 / M::kFolds>(all);
    else if constexpr (kWarps * M::kCluster > 1)
      return join_warps<R, kWarps, M::kCluster, M::kFolds, kRoundsAtOnce, kWithin>(
          all, static_cast<int>(threadIdx.x) % M::kThreads / 32, (kStage * M::kRows + row.slot) * kWarps * M::kFolds);
    else return all;
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
  // The maximum of a row, then the sum: a row that is held is folded twice in less time than its sums are rescaled.
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
        const typename R::Value weight = R::weight(x[i], top);  // without a branch: outputs use most of it again
        weights[i] = i < count ? weight : 0;
      }
      typename Total::State& own = sum[M::kFolds == 1 ? 0 : piece % M::kFolds];
      own = Total::join(own, {sum_of(weights)});
    });
    return {top, join_row<kStage, Total, kStateBytes / 2>(sum).value};
  }
  // step(piece, its values, how many there are) for the vectors of a row.
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

  // The result of a stage of a row that is cut into parts. Alternate stages reuse the same places for states, after all threads
  // have read them.
  template <int kStage>
  __device__ __forceinline__ typename ReducerOf<kStage>::State fold_parts() {
    using R = ReducerOf<kStage>;
    constexpr int kWarps = M::kThreads / 32, kPlaces = kStage % 2 * kMaxParts * kWarps;
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

  __device__ __forceinline__ void fetch_late(int wave, int piece) {
    if (piece < M::kPieces) row.fetch_late(held[wave * M::kPieces + piece], wave, piece, row.count(wave, piece));
  }
  __device__ __forceinline__ void first_late(int wave) {
    if constexpr (kHeld) {
#pragma unroll
      for (int piece = 0; piece < M::kLateAhead; ++piece) fetch_late(wave, piece);
    }
  }
  __device__ __forceinline__ void store(int wave) {
    const int segment = row.segment(wave);
    if constexpr (M::kSegmentOutputs) {
      if (row.has(segment) && row.element(0) == 0) store_segment(wave, segment);
    }
    if constexpr (M::kFullOutputs) {
      if (wave > 0) first_late(wave);
      const auto uniform = M::uniform(At<M::kStages>{}, constants, results, p);
      if constexpr (kAhead > 1) {
        store_backwards(uniform, wave, first_piece(), end_piece());
      } else {
        each_vector(wave, [&](int piece, int count) {
          if constexpr (kHeld) fetch_late(wave, piece + M::kLateAhead);  // in flight while this vector is computed
          store_vector(uniform, wave, piece, count);
        });
      }
    }
  }
  // From the end on, which the last stage has read last: some of it is in L2 still.
  template <class U>
  __device__ __forceinline__ void store_backwards(const U& uniform, int wave, int first, int end) {
    if constexpr (Row::kShifts) return store_aligned(uniform, first, end);
    const int whole = min(end, p.elements / (M::kLanes * M::kVec));
    const int together = first + max(whole - first, 0) / kAhead * kAhead;
#pragma unroll 1
    for (int piece = end - 1; piece >= together; --piece) store_vector(uniform, wave, piece, row.count(wave, piece));
    int piece = together;
#pragma unroll 1
    for (; kFar > kAhead && piece - kFar >= first; piece -= kFar) store_batch<kFar>(uniform, wave, piece - kFar);
#pragma unroll 1
    for (; piece > first; piece -= kAhead) store_batch<kAhead>(uniform, wave, piece - kAhead);
  }
  template <int kCount, class U>
  __device__ __forceinline__ void store_batch(const U& uniform, int wave, int piece) {
    typename M::Inputs in[kCount];
    const int count = row.there ? M::kVec : 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      row.fetch(in[i], wave, piece + i, count);
      row.fetch_late(in[i], wave, piece + i, count);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (count != 0) put_vector(uniform, in[i], wave, piece + i, count);
    }
  }
  // The same by vectors that begin where the first result is aligned, for what a lane makes of an element any other makes too.
  template <class U>
  __device__ __forceinline__ void store_aligned(const U& uniform, int first, int end) {
    const int late = M::late(p, row.at), own = row.element(0) - late;
    if (end == pieces()) end = (p.elements + late + kAtOnce - 1) / kAtOnce;
#pragma unroll 1
    while (end > first) {
      if (kFar > kAhead && store_inside<kFar>(uniform, own, first, end)) {
        end -= kFar;
      } else if (store_inside<kAhead>(uniform, own, first, end)) {
        end -= kAhead;
      } else {
        store_rest(uniform, own + --end * kAtOnce);
      }
    }
  }
  // The last kCount pieces of those, unless a vector is not whole.
  template <int kCount, class U>
  __device__ __forceinline__ bool store_inside(const U& uniform, int own, int first, int end) {
    const int element = own + (end - kCount) * kAtOnce;
    if (end - kCount < first || element < 0 || element + (kCount - 1) * kAtOnce + M::kVec > p.elements) return false;
    if (!row.template inside<kCount, kAtOnce>(element)) return false;
    typename M::Inputs in[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) row.template fetch_inside<true>(in[i], element + i * kAtOnce);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      typename M::Outputs out = made(uniform, in[i]);
      M::store_some(out, p, row.at, element + i * kAtOnce, 0, M::kVec);
    }
    return true;
  }
  // The elements of the row in a vector that begins at an element.
  template <class U>
  __device__ __forceinline__ void store_rest(const U& uniform, int element) {
    const int from = max(0, -element), to = min(p.elements - element, M::kVec);
    if (!row.there || to <= from) return;
    typename M::Inputs in{};
    M::fetch_some(in, p, row.at, element, from, to);
    typename M::Outputs out = made(uniform, in);
    M::store_some(out, p, row.at, element, from, to);
  }
  __device__ __forceinline__ void store_segment(int wave, int segment) {
    if constexpr (kLie == Lie::kAny) {
      const auto here = row.located(segment, 0);
      M::store_segment(p, here.at, 0, M::load_one(p, here.at), constants, results, here.place);
    } else {
      M::store_segment(p, row.at, segment, M::element(inputs(wave, 0, 0), 0), constants, results, row.place);
    }
  }
  template <class U>
  __device__ __forceinline__ void store_vector(const U& uniform, int wave, int piece, int count) {
    if (!Row::kShifts && count <= 0) return;  // else lanes of a warp store together
    if constexpr (kLie == Lie::kAny) {
#pragma unroll 1
      for (int i = 0; i < min(count, M::kVec); ++i) {
        const auto here = row.located(row.segment(wave), row.element(piece) + i * M::kStep);
        M::store_one(p, here.at, M::result(M::load_one(p, here.at), uniform, constants, results, p, here.place));
      }
    } else {
      typename M::Inputs in = inputs(wave, piece, count);
      if constexpr (!kHeld) row.fetch_late(in, wave, piece, count);
      put_vector(uniform, in, wave, piece, count);
    }
  }
  template <class U>
  __device__ __forceinline__ void put_vector(const U& uniform, const typename M::Inputs& in, int wave, int piece, int count) {
    typename M::Outputs out = made(uniform, in);
    row.store(out, wave, piece, count);
  }
  template <class U>
  __device__ __forceinline__ typename M::Outputs made(const U& uniform, const typename M::Inputs& in) {
    typename M::Outputs out;
#pragma unroll
    for (int i = 0; i < M::kVec; i += 2) {
      const auto one = M::result(M::element(in, i), uniform, constants, results, p, row.place);
      M::put(out, i, one, M::result(M::element(in, i + 1), uniform, constants, results, p, row.place));
    }
    return out;
  }
};

}  // namespace opfacade
