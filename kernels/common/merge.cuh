// Exact merge of attention states: o = sum_s w_s o_s with w_s = exp(lse_s) / sum exp(lse). States are added in their order,
// whatever the launch. o of an empty state (lse = -inf) is never read.
#pragma once
#include "kernels/ptx/dtype.cuh"
#include "kernels/common/softmax.cuh"

namespace opfacade {

template <class T, int kVec>
struct alignas(sizeof(typename Element<T>::Bits) * kVec) Pack {
  typename Element<T>::Bits e[kVec];
};

// The states of one row. Strides in elements between states.
struct RowStates {
  const void* o;
  const float* lse;
  int64_t o_stride;
  int64_t lse_stride;
  int count;
};

struct RowWeights {
  float base;   // finite maximum of lse
  float total;  // 0 if every state is empty
};

__device__ __forceinline__ float state_weight(float lse, float base) {
  return lse == minus_infinity() ? 0.f : exp2_approx((lse - base) * kLog2E);
}

// Must be called by one warp: each lane adds every 32nd state, then a butterfly reduction adds the lanes.
__device__ __forceinline__ RowWeights row_weights(const RowStates& states) {
  float row_max = minus_infinity(), total = 0.f;
  for (int s = threadIdx.x % 32; s < states.count; s += 32) row_max = fmaxf(row_max, states.lse[s * states.lse_stride]);
  const float base = finite_max(warp_max(row_max));
  for (int s = threadIdx.x % 32; s < states.count; s += 32) total += state_weight(states.lse[s * states.lse_stride], base);
  return {base, warp_sum(total)};
}

__device__ __forceinline__ float merged_lse(const RowWeights& weights) {
  return weights.total == 0.f ? minus_infinity() : weights.base + logf(weights.total);
}

// Adds kVec elements at `column` of states first, first + step, ... to `sum`, without normalisation.
template <class T, int kVec>
__device__ __forceinline__ void add_states(const RowStates& states, const RowWeights& weights, int column, int first,
                                           int step, float (&sum)[kVec]) {
#pragma unroll 4
  for (int s = first; s < states.count; s += step) {
    const float lse = states.lse[s * states.lse_stride];
    if (lse == minus_infinity()) continue;
    const float weight = state_weight(lse, weights.base);
    const typename Element<T>::Bits* row = static_cast<const typename Element<T>::Bits*>(states.o) + s * states.o_stride;
    const Pack<T, kVec> part = *reinterpret_cast<const Pack<T, kVec>*>(row + column);
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum[i] += weight * Element<T>::load(part.e[i]);
  }
}

// Writes a row multiplied by `factor`, which is 1 / total, or 0 if every state is empty.
template <class T, int kVec>
__device__ __forceinline__ void store_merged(void* row, int column, const float (&sum)[kVec], float factor, bool aligned) {
  using Bits = typename Element<T>::Bits;
  Pack<T, kVec> out;
#pragma unroll
  for (int i = 0; i < kVec; ++i) out.e[i] = Element<T>::store(sum[i] * factor);
  Bits* dst = static_cast<Bits*>(row) + column;
  if (aligned) {
    *reinterpret_cast<Pack<T, kVec>*>(dst) = out;
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) dst[i] = out.e[i];
  }
}

}  // namespace opfacade
