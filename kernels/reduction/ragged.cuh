// A fold of rows of different lengths over a program M. A warp has a short row, a CTA a long one; which it is follows from the
// length of the row, and a lane takes every 32nd or 256th element from the first one on, so that the bits of a row depend on
// neither other rows nor where it begins. Elements are read again by each stage that uses another, and by the outputs.
#pragma once
#include "kernels/elementwise/map.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/reduction/join.cuh"
#include "kernels/elementwise/pairs.cuh"
#include "kernels/reduction/ragged_range.cuh"
#include "kernels/reduction/stages.cuh"

namespace opfacade {

constexpr int kShortRow = 1024;  // elements that a warp folds

template <class M, Lie kLie>
struct RaggedFold : Located<M> {
  using Params = typename M::Params;
  using Located<M>::at, Located<M>::place;
  static constexpr int kBatch = kLie == Lie::kAny ? 1 : M::kRows;  // elements that are loaded before the first is used

  const Params& p;
  int lane, lanes;
  int64_t count;  // elements of the row
  typename M::Constants constants{};
  typename M::Results results{};

  __device__ __forceinline__ explicit RaggedFold(const Params& params) : p(params) {}

  __device__ __forceinline__ void run() {
    wait_for_previous();
    allow_dependents();
    if (static_cast<int>(blockIdx.x) < p.wide) return long_rows();
    const int64_t row = (int64_t{blockIdx.x} - p.wide) * kRaggedWarps + threadIdx.x / 32;
    lane = static_cast<int>(threadIdx.x) % 32, lanes = 32;
    if (row < p.rows && find(row) <= kShortRow) fold();
  }

 private:
  // Rows are dealt to CTAs one by one; each thread looks at one of 256.
  __device__ __forceinline__ void long_rows() {
    uint32_t* const found = reinterpret_cast<uint32_t*>(dynamic_shared() + M::kStages * kRaggedWarps * kStateBytes);
    lane = static_cast<int>(threadIdx.x), lanes = kRaggedThreads;
#pragma unroll 1
    for (int64_t first = blockIdx.x; first < p.rows; first += int64_t{kRaggedThreads} * p.wide) {
      const int64_t own = first + int64_t{lane} * p.wide;
      const bool is_long = own < p.rows && find(own) > kShortRow;
      const uint32_t mask = __ballot_sync(0xffffffffu, is_long);
      if (lane % 32 == 0) found[lane / 32] = mask;
      __syncthreads();
#pragma unroll 1
      for (int i = 0; i < kRaggedThreads; ++i) {
        if ((found[i / 32] >> i % 32 & 1) == 0) continue;
        find(first + int64_t{i} * p.wide);
        fold();
        __syncthreads();  // others have read the states of this row
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ int64_t find(int64_t row) {
    locate_row<M>(*this, p, row, p.kept);
    const RowRange range = range_of<M>(p, place[0]);
    count = range.length * p.unit;
    if (count > kShortRow != (lanes != 32)) return count;  // another CTA folds it
    constants = M::constants(p, at);
    constants.length = range.length;
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) at[k] += range.begin * p.stride[k][p.kept];
    return count;
  }

  __device__ __forceinline__ void fold() {
    each_pass<M>(At<0>{}, [&](auto first, auto last) { pass<decltype(first)::kStage, decltype(last)::kStage>(); });
    if (lane == 0) M::store_row(p, at, constants, results, place);
    if constexpr (M::kFullOutputs) {
      const auto uniform = M::uniform(At<M::kStages>{}, constants, results, p);
      each_batch([&](const typename M::Element(&in)[kBatch], int64_t first, int here) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (i >= here) continue;
          const Located<M> where = element(first + int64_t{i} * lanes);
          M::store_one(p, where.at, M::result(in[i], uniform, constants, results, p, where.place));
        }
      });
    }
  }

  __device__ __forceinline__ Located<M> element(int64_t n) const {
    if constexpr (kLie == Lie::kAny) {
      return located_from<M>(*this, p, n);
    } else {
      Located<M> found;
#pragma unroll
      for (int k = 0; k < M::kOperands; ++k) found.at[k] = at[k] + n * p.step[k];
      return found;
    }
  }
  // step(elements, the place of the first, how many)
  template <class F>
  __device__ __forceinline__ void each_batch(F step) {
#pragma unroll 1
    for (int64_t first = lane; first < count; first += int64_t{kBatch} * lanes) {
      const int64_t left = (count - first + lanes - 1) / lanes;
      const int here = static_cast<int>(left < kBatch ? left : kBatch);
      typename M::Element in[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (i < here) in[i] = M::load_one(p, element(first + int64_t{i} * lanes).at);
      step(in, first, here);
    }
  }

  template <int kFirst, int kEnd>
  __device__ __forceinline__ void pass() {
    StatesOf<M, 1, kFirst, kEnd> all;
    all.each([&](auto stage, auto& states) { states[0] = ReducerOf<M, decltype(stage)::kStage>::none(); });
    each_batch([&](const typename M::Element(&in)[kBatch], int64_t first, int here) {
      all.each([&](auto stage, auto& states) { add<decltype(stage)::kStage>(states[0], in, first, here); });
    });
    all.each([&](auto stage, auto& states) {
      constexpr int kStage = decltype(stage)::kStage;
      using R = ReducerOf<M, kStage>;
      auto joined = join_lanes<R, 32>(states[0]);
      if (lanes != 32) joined = join_warps<R, kRaggedWarps, 1>(joined, lane / 32, kStage * kRaggedWarps);
      M::keep(stage, results, joined);
    });
  }
  // Values one by one, so that how many are loaded at once does not matter.
  template <int kStage, class State>
  __device__ __forceinline__ void add(State& state, const typename M::Element (&in)[kBatch], int64_t first, int here) {
    using R = ReducerOf<M, kStage>;
    const auto uniform = M::uniform(At<kStage>{}, constants, results, p);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= here) continue;
      const int64_t n = first + int64_t{i} * lanes;
      Located<M> where{};
      if constexpr (M::kPlaced) where = element(n);
      const typename R::Value x[1] = {M::value(At<kStage>{}, in[i], uniform, constants, results, p, where.place)};
      accumulate_rows<R>(state, x, 1, static_cast<int>(n), 0);
    }
  }
};

}  // namespace opfacade
