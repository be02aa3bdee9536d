// Merge of attention states over disjoint keys. Bound by memory: a warp takes a (row, head), reads each state once in
// pieces of up to 16 bytes, and sums in f32 in the order of the states.
#pragma once
#include "kernels/cascade/merge_states_params.h"
#include "kernels/common/merge.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void merge_states(const MergeStatesParams& p) {
  constexpr int kWidest = 16 / sizeof(typename Element<typename C::T>::Bits);
  constexpr int kVec = C::kHeadDim % 8 == 0 && kWidest == 8 ? 8 : C::kHeadDim % 4 == 0 ? 4 : C::kHeadDim % 2 == 0 ? 2 : 1;
  using Bits = typename Element<typename C::T>::Bits;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= p.rows) return;
  const RowStates states{static_cast<const Bits*>(p.states_o) + row * C::kHeadDim, p.states_lse + row,
                         p.rows * C::kHeadDim, p.rows, p.states};
  const RowWeights weights = row_weights(states);
  for (int column = threadIdx.x % 32 * kVec; column < C::kHeadDim; column += 32 * kVec) {
    float sum[kVec] = {};
    add_states<typename C::T>(states, weights, column, 0, 1, sum);
    store_merged<typename C::T>(static_cast<Bits*>(p.o) + row * C::kHeadDim, column, sum, reciprocal_or_zero(weights.total), true);
  }
  if (threadIdx.x % 32 == 0) p.lse[row] = merged_lse(weights);
}

}  // namespace opfacade
