// A fold of rows of different lengths over a program M. A warp folds a short row, a CTA a long one; the length of the row
// decides. The step between the elements of a lane is the number of the row's threads. So the bits of a row depend on neither
// other rows nor its start. Elements are read again by each stage that uses another stage, and by the outputs.
//
// A CTA has `each` rows of either kind. Its short rows are consecutive, so that a warp reads their bounds at once. Its long
// rows are gridDim.x apart, so that neighbouring long rows go to different CTAs.
#pragma once
#include "kernels/elementwise/map.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/reduction/join.cuh"
#include "kernels/elementwise/pairs.cuh"
#include "kernels/reduction/ragged_group.cuh"
#include "kernels/reduction/ragged_range.cuh"
#include "kernels/reduction/stages.cuh"

namespace opfacade {

constexpr int kShortBatch = 4;   // elements per lane that a warp loads at once: a larger batch costs shorter rows instructions
constexpr int kNearBatch = 8;    // upper bound if the step between elements is a parameter: addresses then take registers too

// A lane's elements that are loaded before the first is used. kLanes: lanes of the row, which is also the step between a lane's
// elements; 0: known at run time.
template <class M, Lie kLie, int kLanes, int kCount>
struct RaggedBatch {
  static constexpr int kSize = kCount;
  // Whether loads past the end load the last element again, without predicates. A thread has seven predicates: with one per
  // load, later loads would wait for the use of earlier ones.
  static constexpr bool kClamps = kLie == Lie::kDense && kCount > kShortBatch;
  const typename M::Params& p;
  const Located<M>& row;
  const uint32_t first, count;  // index of the first element in the row, and length of the row
  const int lanes;
  Located<M> start{};
  typename M::Element in[kCount];

  __device__ __forceinline__ RaggedBatch(const typename M::Params& params, const Located<M>& row, uint32_t first, uint32_t count,
                                         int lanes)
      : p(params), row(row), first(first), count(count), lanes(kLanes == 0 ? lanes : kLanes) {
    start = kLie == Lie::kAny ? located_from<M>(row, p, first) : moved(row, first);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kClamps) in[i] = M::load_one(p, moved(row, min(element(i), count - 1)).at);
      else if (has(i)) in[i] = M::load_one(p, located(i).at);
    }
  }
  __device__ __forceinline__ uint32_t element(int i) const { return first + static_cast<uint32_t>(i * lanes); }
  __device__ __forceinline__ bool has(int i) const { return i == 0 || element(i) < count; }
  __device__ __forceinline__ Located<M> located(int i) const {
    if constexpr (kLie == Lie::kAny) return i == 0 ? start : located_from<M>(row, p, element(i));
    else return moved(start, static_cast<uint32_t>(i * lanes));
  }

 private:
  __device__ __forceinline__ Located<M> moved(const Located<M>& from, uint32_t by) const {
    Located<M> found;
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) found.at[k] = from.at[k] + (kLie == Lie::kDense ? int64_t{by} : by * p.step[k]);
    return found;
  }
};

// One row, folded by `lanes` threads.
template <class M, Lie kLie>
struct RaggedRow : Located<M> {
  using Params = typename M::Params;
  using Located<M>::at, Located<M>::place;

  const Params& p;
  const int lane, lanes;
  const uint32_t count;  // elements in the row
  typename M::Constants constants{};
  typename M::Results results{};

  __device__ __forceinline__ RaggedRow(const Params& params, int64_t row, RowRange range, int lane, int lanes)
      : p(params), lane(lane), lanes(lanes), count(static_cast<uint32_t>(range.length * params.unit)) {
    if constexpr (kLie == Lie::kDense) {
      place[0] = row;
#pragma unroll
      for (int k = 0; k < M::kOperands; ++k) at[k] = row * p.stride[k][0];
    } else {
      locate_row<M>(*this, p, row, p.kept);
    }
    constants = M::constants(p, at);
    constants.length = range.length;
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) at[k] += range.begin * p.stride[k][p.kept];
  }

  __device__ __forceinline__ void fold() {
    each_pass<M>(At<0>{}, [&](auto first, auto last) { pass<decltype(first)::kStage, decltype(last)::kStage>(); });
    if (lane == 0) M::store_row(p, at, constants, results, place);
    if constexpr (M::kFullOutputs) {
      const auto uniform = M::uniform(At<M::kStages>{}, constants, results, p);
      each_batch([&](const auto& batch) {
#pragma unroll
        for (int i = 0; i < batch.kSize; ++i) {
          if (!batch.has(i)) continue;
          const Located<M> where = batch.located(i);
          M::store_one(p, where.at, M::result(batch.in[i], uniform, constants, results, p, where.place));
        }
      });
    }
  }

 private:
  template <class F>
  __device__ __forceinline__ void each_batch(F step) {
    if constexpr (kLie == Lie::kAny) {
      batches<0, 1>(step);
    } else if constexpr (kLie == Lie::kNear) {
      batches<0, M::kRows < kNearBatch ? M::kRows : kNearBatch>(step);
    } else {
      if (lanes == 32) batches<32, M::kRows < kShortBatch ? M::kRows : kShortBatch>(step);
      else batches<M::kThreads, M::kRows>(step);
    }
  }
  template <int kLanes, int kCount, class F>
  __device__ __forceinline__ void batches(F step) {
#pragma unroll 1
    for (uint32_t first = lane; first < count; first += static_cast<uint32_t>(kCount * (kLanes == 0 ? lanes : kLanes)))
      step(RaggedBatch<M, kLie, kLanes, kCount>(p, *this, first, count, lanes));
  }

  template <int kFirst, int kEnd>
  __device__ __forceinline__ void pass() {
    StatesOf<M, 1, kFirst, kEnd> all;
    all.each([&](auto stage, auto& states) { states[0] = ReducerOf<M, decltype(stage)::kStage>::none(); });
    each_batch([&](const auto& batch) {
      all.each([&](auto stage, auto& states) { add<decltype(stage)::kStage>(states[0], batch); });
    });
    all.each([&](auto stage, auto& states) {
      constexpr int kStage = decltype(stage)::kStage;
      using R = ReducerOf<M, kStage>;
      static_assert(M::kStages * M::kWarps <= M::kSlots, "as the binding launches it");
      auto joined = join_lanes<R, 32>(states[0]);
      if (lanes != 32) joined = join_warps<R, M::kWarps, 1>(joined, lane / 32, kStage * M::kWarps);
      M::keep(stage, results, joined);
    });
  }
  // Adds values one by one, so that the size of a batch changes no bit.
  template <int kStage, class State, class Batch>
  __device__ __forceinline__ void add(State& state, const Batch& batch) {
    using R = ReducerOf<M, kStage>;
    const auto uniform = M::uniform(At<kStage>{}, constants, results, p);
#pragma unroll
    for (int i = 0; i < Batch::kSize; ++i) {
      if (!batch.has(i)) continue;
      Located<M> where{};
      if constexpr (M::kPlaced) where = batch.located(i);
      const typename R::Value x[1] = {M::value(At<kStage>{}, batch.in[i], uniform, constants, results, p, where.place)};
      accumulate_rows<R>(state, x, 1, static_cast<int>(batch.element(i)), 0);
    }
  }
};

template <class M, Lie kLie>
struct RaggedFold {
  using Params = typename M::Params;
  static constexpr bool kGroups = M::kGroups && kLie == Lie::kDense;
  const Params& p;

  __device__ __forceinline__ explicit RaggedFold(const Params& params) : p(params) {}

  __device__ __forceinline__ void run() {
    wait_for_previous();
    allow_dependents();
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int rows = p.each <= M::kWarps ? 1 : p.each / M::kWarps;  // of a warp
    const int own = lane < rows && warp * rows < p.each ? warp * rows + lane : p.each;
    const int64_t near = own < p.each ? int64_t{blockIdx.x} * p.each + own : p.rows;
    const RowRange range = bounds(near);
    uint32_t mine = __ballot_sync(0xffffffffu, near < p.rows && range.length * p.unit <= M::kShortRow);
    int group = 0;  // `ours` has the long rows among far(group) .. far(group + 31)
    uint32_t ours = long_rows();
    while (true) {
      if (ours == 0 && (group += 32) < p.each) {
        ours = masks()[group / 32];
        continue;
      }
      const bool is_long = ours != 0;
      if constexpr (kGroups) {
        if (!is_long) return fold_groups(RowGroup<M>(p, near, range, (mine >> lane & 1) != 0, lane), mine);
      }
      if (!is_long && mine == 0) return;
      const int i = __ffs(is_long ? ours : mine) - 1;
      const RowRange short_range = {__shfl_sync(0xffffffffu, range.begin, i), __shfl_sync(0xffffffffu, range.length, i)};
      const int64_t row = is_long ? far(group + i) : int64_t{blockIdx.x} * p.each + warp * rows + i;
      const RowRange found = !is_long ? short_range : kGroups ? ranges()[group + i] : bounds(row);
      RaggedRow<M, kLie>(p, row, found, is_long ? thread : lane, is_long ? M::kThreads : 32).fold();
      if (is_long) __syncthreads();  // all threads have read the states of this row
      (is_long ? ours : mine) &= (is_long ? ours : mine) - 1;
    }
  }

 private:
  // shorts: a bit for each lane whose row is short.
  static __device__ __forceinline__ void fold_groups(RowGroup<M> group, uint32_t shorts) {
#pragma unroll 1
    for (int first = 0; shorts != 0; shorts >>= M::kGroupRows, first += M::kGroupRows) {
      if (shorts % (1u << M::kGroupRows) != 0) group.fold(first, shorts);
    }
  }
  __device__ __forceinline__ int64_t far(int i) const { return blockIdx.x + int64_t{i} * gridDim.x; }
  // Range of a row; empty past the last row.
  __device__ __forceinline__ RowRange bounds(int64_t row) const {
    if (row >= p.rows) return {0, 0};
    return range_of<M>(p, kLie == Lie::kDense || p.kept == 1 ? row : row / p.inner);
  }
  __device__ __forceinline__ uint32_t* masks() const {
    return reinterpret_cast<uint32_t*>(dynamic_shared() + M::kSlots * kStateBytes);
  }
  // Ranges of the CTA's long rows, which long_rows() stored: a load from global memory before each row would delay its
  // elements.
  __device__ __forceinline__ RowRange* ranges() const { return reinterpret_cast<RowRange*>(masks() + M::kWarps); }
  // Finds the CTA's long rows, one row per thread. Returns the first mask.
  __device__ __forceinline__ uint32_t long_rows() const {
    const int thread = static_cast<int>(threadIdx.x);
    const RowRange range = bounds(thread < p.each ? far(thread) : p.rows);
    const bool is_long = range.length * p.unit > M::kShortRow;
    if (kGroups && is_long) ranges()[thread] = range;
    const uint32_t mask = __ballot_sync(0xffffffffu, is_long);
    if (thread % 32 == 0) masks()[thread / 32] = mask;
    __syncthreads();
    return masks()[0];
  }
};

}  // namespace opfacade
