// A fold of any program M that no other kernel supports. A CTA computes a row of the kept axes, stage after stage. Results of a
// stage are written to the workspace, where later stages and outputs read them, and each stage reads the elements again. One
// warp joins the values of a result, or the whole CTA if a row has few results. The bits follow from the extents of folded axes
// and from the elements; batch and strides do not change them.
#pragma once
#include "kernels/common/operations.cuh"
#include "kernels/elementwise/map.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/reduction/general_params.h"
#include "kernels/reduction/join.cuh"
#include "kernels/reduction/row.cuh"

namespace opfacade {

template <class M>
class GeneralFold {
 public:
  using Params = typename M::Params;
  static constexpr int kWarps = M::kWarps, kThreads = 32 * kWarps;

  __device__ __forceinline__ explicit GeneralFold(const Params& params) : p(params) {}

  __device__ __forceinline__ void run() {
    wait_for_previous();
    allow_dependents();
    results = p.results + blockIdx.x * p.words;
    const int64_t valid = valid_rows(p);
#pragma unroll 1
    for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
      locate(row);
      if (p.num_valid == nullptr || place[0] < valid) {
        stages(At<0>{});
        passes(At<0>{});
      }
      __syncthreads();  // all threads have read the results and coordinates of this row
    }
  }

 private:
  // Finds the coordinates of a row. One thread does the 64-bit divisions, in shared memory: a loop over an array in registers
  // would move the array to local memory.
  __device__ __forceinline__ void locate(int64_t row) {
    int64_t* const shared = reinterpret_cast<int64_t*>(dynamic_shared());
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int axis = p.kept - 1; axis >= 0; --axis) row = split(row, p.extent[axis], p.divider[axis], shared[axis]);
    }
    __syncthreads();
#pragma unroll
    for (int axis = 0; axis < kMapAxes; ++axis) place[axis] = axis < M::kKept ? shared[axis] : 0;
  }

  template <int kStage>
  __device__ __forceinline__ void stages(At<kStage> stage) {
    if constexpr (kStage < M::kStages) {
      // Either the whole CTA joins one result at a time, or each warp joins its own results.
      const bool whole = p.apart[kStage] < kWarps;
      const uint32_t teams = whole ? 1 : kWarps, lanes = kThreads / teams;
#pragma unroll 1
      for (uint32_t result = threadIdx.x / lanes; result < p.apart[kStage]; result += teams)
        one_result(stage, result, whole, threadIdx.x % lanes, lanes);
      __syncthreads();
      stages(At<kStage + 1>{});
    }
  }

  template <int kStage>
  __device__ __forceinline__ void one_result(At<kStage> stage, uint32_t result, bool whole, uint32_t lane, uint32_t lanes) {
    using R = decltype(M::reducer(stage));
    M::go_apart(stage, p, result, place);
    typename R::State state = R::none();
#pragma unroll 1
    for (uint32_t i = lane; i < p.joined[kStage]; i += lanes) {
      M::go_joined(stage, p, i, place);
      const typename R::Value value[1] = {M::value_at(stage, p, results, place)};
      accumulate_rows<R>(state, value, 1, static_cast<int>(i), 0);
    }
    state = join_lanes<R, 32>(state);
    if (whole) {
      state = join_warps<R, kWarps, 1>(state, static_cast<int>(threadIdx.x) / 32, kPlaceStates);
      __syncthreads();  // all threads have read the states of the warps
    }
    if (lane == 0) M::keep_result(stage, p, results, place, state);
  }

  // Outputs with the same axes are written in one pass, because one may overwrite an input of another.
  template <int kPass>
  __device__ __forceinline__ void passes(At<kPass> pass) {
    if constexpr (kPass < M::kPasses) {
      const uint32_t count = M::elements(pass, p);
#pragma unroll 1
      for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
        M::go_along(pass, p, i, place);
        M::write(pass, p, results, place);
      }
      passes(At<kPass + 1>{});
    }
  }

  const Params& p;
  uint64_t* results;
  int64_t place[kMapAxes];  // coordinates along the kept axes, then along the folded ones
};

}  // namespace opfacade
