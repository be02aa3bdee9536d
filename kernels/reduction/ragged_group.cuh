// Folds several short rows per warp at a time, if each element is used once: the loads of all these rows are in flight
// together, and their states are joined together. Elements are added and lanes are joined in the order of a warp with one row,
// so the bits are the same.
#pragma once
#include "kernels/elementwise/map.cuh"
#include "kernels/reduction/join.cuh"
#include "kernels/reduction/ragged_range.cuh"
#include "kernels/reduction/stages.cuh"

namespace opfacade {

// Each lane keeps the start and the length of one row; if its row is not short, it keeps row 0 with length 0.
template <class M>
struct RowGroup {
  using Params = typename M::Params;
  // kGroupRows: a power of two. kGroupBatch: elements per lane and row that are loaded before the first is used.
  static constexpr int kGroupRows = M::kGroupRows, kGroupBatch = M::kGroupBatch;
  static constexpr int kLanesOfRow = 32 / kGroupRows;  // lanes that hold a row's state after join_folds

  const Params& p;
  const int lane;
  const uint32_t length;  // length of this lane's row along axis 1
  Located<M> start{};

  __device__ __forceinline__ RowGroup(const Params& params, int64_t row, RowRange range, bool is_short, int lane)
      : p(params), lane(lane), length(is_short ? static_cast<uint32_t>(range.length) : 0) {
    start.place[0] = is_short ? row : 0;  // always a valid row: its constants are loaded
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) start.at[k] = start.place[0] * p.stride[k][0] + range.begin * p.stride[k][p.kept];
  }

  // Folds the rows of kGroupRows lanes from `first` on. shorts: bit i is set if lane first + i has a short row.
  __device__ __forceinline__ void fold(int first, uint32_t shorts) {
    States all;
    all.each([&](auto stage, auto& states) {
#pragma unroll
      for (int k = 0; k < kGroupRows; ++k) states[k] = ReducerOf<M, decltype(stage)::kStage>::none();
    });
    add_rows(all, first);
    const int own = lane / kLanesOfRow;
    const One row = one(first + own);
    typename M::Results results{};
    all.each([&](auto stage, auto& states) {
      M::keep(stage, results, join_folds<ReducerOf<M, decltype(stage)::kStage>>(states));
    });
    if (lane % kLanesOfRow == 0 && (shorts >> own & 1) != 0) M::store_row(p, row.at, row.constants, results, row.place);
  }

 private:
  using States = StatesOf<M, kGroupRows, 0, M::kStages>;
  struct One : Located<M> {
    typename M::Constants constants{};
    uint32_t count;  // of its elements
  };

  // Broadcasts the row of lane `which`.
  __device__ __forceinline__ One one(int which) const {
    One found{};
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) found.at[k] = __shfl_sync(0xffffffffu, start.at[k], which);
    found.place[0] = __shfl_sync(0xffffffffu, start.place[0], which);
    const uint32_t of_row = __shfl_sync(0xffffffffu, length, which);
    found.constants = M::constants(p, found.at);
    found.constants.length = of_row;
    found.count = of_row * static_cast<uint32_t>(p.unit);
    return found;
  }

  __device__ __forceinline__ void add_rows(States& all, int first) {
    One rows[kGroupRows];
    uint32_t longest = 0;
#pragma unroll
    for (int k = 0; k < kGroupRows; ++k) rows[k] = one(first + k), longest = max(longest, rows[k].count);
#pragma unroll 1
    for (uint32_t begin = lane; begin - lane < longest; begin += 32 * kGroupBatch) {
      typename M::Inputs in[kGroupRows][kGroupBatch];
#pragma unroll
      for (int k = 0; k < kGroupRows; ++k) load(in[k], rows[k], begin);
#pragma unroll
      for (int k = 0; k < kGroupRows; ++k) {
        // Not the condition of the loads: one predicate for both would make later loads wait for the use of earlier ones.
        const int mine = (static_cast<int>(rows[k].count - begin) + 31) >> 5;
#pragma unroll
        for (int i = 0; i < kGroupBatch; ++i)
          if (i < mine) add(all, rows[k], M::element(in[k][i], 0), k, begin + 32 * i);
      }
    }
  }
  // Loads elements without converting them: a conversion under the predicate of a load would wait for the load.
  __device__ __forceinline__ void load(typename M::Inputs (&in)[kGroupBatch], const One& row, uint32_t begin) const {
#pragma unroll
    for (int i = 0; i < kGroupBatch; ++i) {
      in[i] = {};
      if (begin + 32 * i < row.count) M::template fetch<false>(in[i], p, row.at, 0, static_cast<int>(begin) + 32 * i, 1);
    }
  }
  __device__ __forceinline__ void add(States& all, const One& row, const typename M::Element& in, int k, uint32_t element) {
    all.each([&](auto stage, auto& states) {
      using R = ReducerOf<M, decltype(stage)::kStage>;
      typename M::Results none{};
      const auto uniform = M::uniform(stage, row.constants, none, p);
      const typename R::Value x[1] = {M::value(stage, in, uniform, row.constants, none, p, row.place)};
      accumulate_rows<R>(states[k], x, 1, static_cast<int>(element), 0);
    });
  }
};

}  // namespace opfacade
