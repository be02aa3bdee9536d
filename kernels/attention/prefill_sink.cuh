// Where the sink of a prefill joins: in the rows that a block finishes, or, when they are partial, in their merge.
#pragma once
#include "kernels/attention/prefill_params.h"
#include "kernels/attention/sink.cuh"

namespace opfacade {

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
