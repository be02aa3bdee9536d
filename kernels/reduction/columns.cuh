// A fold over a program M whose innermost axis is kept. Neighbouring threads have neighbouring columns, one vector each, so
// loads are whole sectors; if columns are not contiguous or the step between rows is not fixed (Lie::kAny), each thread has one
// column. Rows are the folded elements: a thread takes every kStep-th one. The row groups of a CTA are joined in order, then
// the CTAs of a cluster. The rows of a thread and the size of its batches follow from the number of folded elements and from
// dtypes, so the bits of a column depend on neither other columns nor strides.
//
// Few rows are kept in registers; more rows are read again by each stage and by the outputs.
#pragma once
#include "kernels/elementwise/map.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/reduction/fold_params.h"
#include "kernels/reduction/join_columns.cuh"
#include "kernels/elementwise/pairs.cuh"
#include "kernels/reduction/stages.cuh"

namespace opfacade {

template <class M, Lie kLie>
struct ColumnFold : Located<M> {
  using Params = typename M::Params;
  using Located<M>::at, Located<M>::place;
  static constexpr int kVec = kLie == Lie::kAny ? 1 : M::kVec;  // columns per thread
  using Tile = ColumnTile<M, kVec>;
  static constexpr int kRows = M::kRows, kStep = M::kGroups * M::kCluster;
  static constexpr bool kHeld = M::kHeld && kLie != Lie::kAny;

  const Params& p;
  int64_t begin, end;  // range of the folded elements
  int group, columns;  // this thread's row group, and how many columns it has
  typename M::Inputs held[kHeld ? kRows : 1];
  typename M::Constants constants[kVec]{};
  typename M::Results results[kVec]{};

  __device__ __forceinline__ explicit ColumnFold(const Params& params)
      : ColumnFold(params, blockIdx.x / M::kCluster, 0, params.elements) {}
  // Folds the elements [begin, end) of each column. block: index of a tile of columns, over all positions of the outer kept
  // axes.
  __device__ __forceinline__ ColumnFold(const Params& params, uint32_t block, int64_t begin, int64_t end)
      : p(params), begin(begin), end(end) {
    if (p.num_valid != nullptr) wait_for_previous();
    const int thread = static_cast<int>(threadIdx.x), last = p.kept - 1;
    const uint32_t tiles = tiles_of(p);
    group = static_cast<int>(blockIdx.x) % M::kCluster * M::kGroups + thread / Tile::kLanes;
    locate_row<M>(*this, p, block / tiles, last);
    const int64_t column = int64_t{block % tiles} * Tile::kColumns + thread % Tile::kLanes * kVec;
    go(*this, column);
    const int64_t left = place[0] < valid_rows(p) ? p.extent[last] - column : 0;
    columns = static_cast<int>(left < 0 ? 0 : left < kVec ? left : kVec);
  }

  // Number of column tiles. At most the number of CTAs, so a 32-bit division suffices.
  __device__ __forceinline__ static uint32_t tiles_of(const Params& p) {
    return static_cast<uint32_t>((p.extent[p.kept - 1] + Tile::kColumns - 1) / Tile::kColumns);
  }

  __device__ __forceinline__ void run() {
    begin_run();
    finish_run();
  }
  __device__ __forceinline__ void finish_run() {
    stages([&](auto stage, const auto& states) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) M::keep(stage, results[j], states[j]);
    });
    if (group == 0) {
#pragma unroll
      for (int j = 0; j < kVec; ++j)
        if (j < columns) M::store_row(p, of_column(j).at, constants[j], results[j], of_column(j).place);
    }
    if constexpr (M::kFullOutputs) {
      if (columns != 0) each_batch([&](const auto& in, int64_t first, int count) { store(in, first, count); });
    }
    if constexpr (M::kCluster > 1 && M::kStages > 0) cluster_arrive(), cluster_wait();  // others may still read its states
  }

  __device__ __forceinline__ void begin_run() {
    wait_for_previous();
#pragma unroll
    for (int j = 0; j < kVec; ++j)
      if (j < columns) constants[j] = M::constants(p, of_column(j).at);
    if constexpr (kHeld) fetch(held, group);
    allow_dependents();
  }
  // Calls done(stage, states of this thread's columns) for each stage.
  template <class F>
  __device__ __forceinline__ void stages(F done) {
    each_pass<M>(At<0>{}, [&](auto first, auto last) { pass<decltype(first)::kStage, decltype(last)::kStage>(done); });
  }

 private:
  __device__ __forceinline__ Located<M> of_column(int j) const {
    Located<M> found = *this;
    go(found, j);
    return found;
  }
  __device__ __forceinline__ void go(Located<M>& from, int64_t columns) const {
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) from.at[k] += columns * p.stride[k][p.kept - 1];
    if constexpr (M::kPlaced) {
#pragma unroll
      for (int axis = 0; axis < kMapAxes; ++axis)  // a variable index would move the array to local memory
        if (axis == p.kept - 1) from.place[axis] += columns;
    }
  }

  // Calls step(inputs, first row, number of rows) for each batch of this thread's rows. All vectors of a batch are loaded
  // before the first is used.
  template <class F>
  __device__ __forceinline__ void each_batch(F step) {
    if constexpr (kHeld) {
      step(held, group, count_from(group));
    } else {
#pragma unroll 1
      for (int64_t first = begin + group; first < end; first += kRows * kStep) {
        typename M::Inputs in[kRows];
        if constexpr (kLie != Lie::kAny) fetch(in, first);
        step(in, first, count_from(first));
      }
    }
  }
  __device__ __forceinline__ int count_from(int64_t first) const {
    const int64_t left = (end - first + kStep - 1) / kStep;
    return static_cast<int>(left < 0 ? 0 : left < kRows ? left : kRows);
  }
  __device__ __forceinline__ void fetch(typename M::Inputs (&in)[kRows], int64_t first) const {
    if (is_wide<kLie>(p)) fetch_rows<true>(in, first);
    else fetch_rows<false>(in, first);
  }
  template <bool kWide>
  __device__ __forceinline__ void fetch_rows(typename M::Inputs (&in)[kRows], int64_t first) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = first + i * kStep;
      const int count = row < end ? columns : 0;
      M::template fetch<kWide>(in[i], p, at, static_cast<int>(row), 0, count);
      if (count != 0) M::fetch_steps(in[i], p, at, static_cast<int>(row));
    }
  }

  // Evaluates a stage's values of column j in a batch of rows.
  template <int kStage, class T, class In>
  __device__ __forceinline__ void evaluate(T (&x)[kRows], const In& in, int j, int64_t first, int count) {
    const auto uniform = M::uniform(At<kStage>{}, constants[j], results[j], p);
    if constexpr (kLie == Lie::kAny) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) x[i] = T(0);
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const Located<M> here = located_from<M>(*this, p, first + i * kStep);
        const T one = M::value(At<kStage>{}, M::load_one(p, here.at), uniform, constants[j], results[j], p, here.place);
#pragma unroll
        for (int k = 0; k < kRows; ++k) x[k] = k == i ? one : x[k];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        x[i] = M::value(At<kStage>{}, M::element(in[i], j), uniform, constants[j], results[j], p, place);
    }
  }

  template <int kFirst, int kEnd, class F>
  __device__ __forceinline__ void pass(F done) {
    StatesOf<M, kVec, kFirst, kEnd> all;
    all.each([&](auto stage, auto& states) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) states[j] = ReducerOf<M, decltype(stage)::kStage>::none();
    });
    each_batch([&](const auto& in, int64_t first, int count) {
      all.each([&](auto stage, auto& states) { add<decltype(stage)::kStage>(states, in, first, count); });
    });
    all.each([&](auto stage, auto& states) {
      constexpr int kStage = decltype(stage)::kStage;
      join_columns<ReducerOf<M, kStage>, Tile>(states, kStage == 0);
      done(stage, states);
    });
  }
  template <int kStage, class State, class In>
  __device__ __forceinline__ void add(State (&states)[kVec], const In& in, int64_t first, int count) {
    using R = ReducerOf<M, kStage>;
    if constexpr (kLie != Lie::kAny && R::kSingly && sizeof(State) > 8) return add_together<kStage>(states, in, first, count);
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      if (kLie == Lie::kAny && columns == 0) continue;
      if constexpr (kLie == Lie::kAny && R::kSingly) {
        add_apart<kStage>(states[j], j, first, count);
      } else {
        typename R::Value x[kRows];
        evaluate<kStage>(x, in, j, first, count);
        accumulate_rows<R>(states[j], x, count, static_cast<int>(first), kStep);
      }
    }
  }
  // Row by row, with one branch per row for all columns. An addition with a division has a long latency and must wait for the
  // previous addition of its column; the additions of different columns overlap.
  template <int kStage, class State, class In>
  __device__ __forceinline__ void add_together(State (&states)[kVec], const In& in, int64_t first, int count) {
    using R = ReducerOf<M, kStage>;
    typename R::Value x[kVec][kRows];
#pragma unroll
    for (int j = 0; j < kVec; ++j) evaluate<kStage>(x[j], in, j, first, count);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i >= count) continue;
#pragma unroll
      for (int j = 0; j < kVec; ++j) R::add(states[j], x[j][i], static_cast<int>(first) + i * kStep);
    }
  }
  // Rows one by one, in a loop that is not unrolled: this layout (kAny) need not be fast.
  template <int kStage, class State>
  __device__ __forceinline__ void add_apart(State& state, int j, int64_t first, int count) {
    const auto uniform = M::uniform(At<kStage>{}, constants[j], results[j], p);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const Located<M> here = located_from<M>(*this, p, first + i * kStep);
      const auto one = M::value(At<kStage>{}, M::load_one(p, here.at), uniform, constants[j], results[j], p, here.place);
      ReducerOf<M, kStage>::add(state, one, static_cast<int>(first) + i * kStep);
    }
  }

  template <class In>
  __device__ __forceinline__ void store(const In& in, int64_t first, int count) {
    if constexpr (kLie == Lie::kAny) {
      const auto uniform = M::uniform(At<M::kStages>{}, constants[0], results[0], p);
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const Located<M> here = located_from<M>(*this, p, first + i * kStep);
        M::store_one(p, here.at, M::result(M::load_one(p, here.at), uniform, constants[0], results[0], p, here.place));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i >= count) continue;
        typename M::Outputs out;
#pragma unroll
        for (int j = 0; j < kVec; j += 2) M::put(out, j, result(in[i], j), result(in[i], j + 1));
        const int row = static_cast<int>(first + i * kStep);
        if (is_wide<kLie>(p)) M::template store<true>(out, p, at, row, 0, columns);
        else M::template store<false>(out, p, at, row, 0, columns);
      }
    }
  }
  __device__ __forceinline__ typename M::Result result(const typename M::Inputs& in, int j) const {
    const auto uniform = M::uniform(At<M::kStages>{}, constants[j], results[j], p);
    return M::result(M::element(in, j), uniform, constants[j], results[j], p, place);
  }
};

}  // namespace opfacade
