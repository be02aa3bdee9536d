// The final step of a prefill row: the factor of V and the sink. If rows are partial, the merge applies the sink.
#pragma once
#include "kernels/attention/prefill/params.h"
#include "kernels/attention/sink.cuh"

namespace opfacade {

// The device decides by the lengths which tiles of an unequal batch are split: whole tiles write o, and partial tiles are
// merged in the same launch.
template <class C>
constexpr bool kCutsByLengths = C::kSplit == SplitMode::kPieces;
// True if every row is partial and a second launch merges the partials.
template <class C>
constexpr bool kMergesLater = C::kSplit != SplitMode::kOff && !kCutsByLengths<C>;

template <class C>
__device__ __forceinline__ float value_factor(const PrefillParams& p, int kv_head) {
  if constexpr (C::kKvBytes != 1) return 1.f;
  return p.v_scale == nullptr ? 1.f : p.v_scale[kv_head * p.kv_scale_stride];
}

// Finishes a complete row of a query head.
template <class C>
__device__ __forceinline__ Sunk merged_row(const PrefillParams& p, int head, float lse) {
  if constexpr (!C::kSinks) return {lse, 1.f};
  return with_sink(p.sinks[head], lse);
}

// Finishes a row of a CTA, which is complete or partial. uncut: the CTA has processed all keys of the row.
template <class C>
__device__ __forceinline__ Sunk finished(const PrefillParams& p, int head, float lse, bool uncut = true) {
  if constexpr (kMergesLater<C>) return {lse, 1.f};
  if (kCutsByLengths<C> && !uncut) return {lse, 1.f};
  return merged_row<C>(p, head, lse);
}

}  // namespace opfacade
