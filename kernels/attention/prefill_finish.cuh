// What joins the finished rows of a prefill: the factor of V, and the sink, which waits for the merge where rows are partial.
#pragma once
#include "kernels/attention/prefill_params.h"
#include "kernels/attention/sink.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ float value_factor(const PrefillParams& p, int kv_head) {
  if constexpr (C::kKvBytes != 1) return 1.f;
  return p.v_scale == nullptr ? 1.f : p.v_scale[kv_head * p.kv_scale_stride];
}

// A row of a query head that nothing else will be merged into.
template <class C>
__device__ __forceinline__ Sunk merged_row(const PrefillParams& p, int head, float lse) {
  if constexpr (!C::kSinks) return {lse, 1.f};
  return with_sink(p.sinks[head], lse);
}

// A row as a block leaves it.
template <class C>
__device__ __forceinline__ Sunk finished(const PrefillParams& p, int head, float lse) {
  if constexpr (C::kSplit != SplitMode::kOff) return {lse, 1.f};
  return merged_row<C>(p, head, lse);
}

}  // namespace opfacade
