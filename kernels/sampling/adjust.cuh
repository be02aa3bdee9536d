// Adjustment of logits in place: bound by memory, four logits a thread and step.
#pragma once
#include "kernels/sampling/row.cuh"
#include "kernels/sampling/stream.cuh"

namespace opfacade {

struct AdjustShared {
  uint8_t flags[kBiasFlags];
  BiasIndex index;
};

template <class C>
__device__ __forceinline__ void adjust_logits(const SampleParams& p) {
  using Bits = typename Element<typename C::T>::Bits;
  AdjustShared& shared = *reinterpret_cast<AdjustShared*>(dynamic_shared());
  const int64_t at = blockIdx.x / p.ctas;
  const uint32_t first = blockIdx.x % p.ctas * p.slice, end = min(static_cast<uint32_t>(p.vocab), first + p.slice);
  if (!is_valid_row(p, at)) return;
  flag_biases<C>(p, at, shared.flags, shared.index, first_biased<C>(p, at));
  const Row<C> row(p, at, shared.flags, &shared.index);
  Bits* const logits = const_cast<Bits*>(row.logits);
  row.each_group(first, end, [&](uint32_t token, const float (&a)[4]) {
    Run<Bits, 4> four;
#pragma unroll
    for (int j = 0; j < 4; ++j) four.e[j] = Element<typename C::T>::store(row.heated(a[j]));
    if (row.aligned && token + 4 <= end) *reinterpret_cast<Run<Bits, 4>*>(logits + token) = four;
    else
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (token + j < end) logits[token + j] = four.e[j];
  });
}

}  // namespace opfacade
