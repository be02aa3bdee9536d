// Writes the kept set of a row as probabilities, or as filtered logits.
#pragma once
#include "kernels/sampling/filtered.cuh"

namespace opfacade {

// x for kept tokens, -inf elsewhere. Without candidates, nothing is kept.
template <class C>
__device__ __forceinline__ void write_masked(const SampleParams& p, int64_t row, HeldRow<C>& held, const Kept& kept) {
  using Bits = typename Element<typename C::T>::Bits;
  const Bits* const x = static_cast<const Bits*>(p.logits) + row * p.logits_row;
  Bits* const out = static_cast<Bits*>(p.values) + row * p.values_row;
  held.each_group([&](uint32_t first, const float (&a)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (first + j >= static_cast<uint32_t>(p.vocab)) continue;
      const bool has = is_candidate(a[j]) && kept.has(first + j, a[j], held);
      out[first + j] = has ? x[first + j] : Element<typename C::T>::store(minus_infinity());
    }
  });
}

template <class C>
__device__ __forceinline__ void probabilities(const SampleParams& p) {
  HeldShared& shared = filter_shared().held;
  const int64_t at = blockIdx.x / p.ctas;
  if (!is_valid_row(p, at)) return;
  const Row<C> row(p, at, shared.flags, nullptr);
  HeldRow<C> held(row, shared, filter_shared().lists.view(), filter_shared().logits());
  const bool any = held.hold([](uint32_t, const float (&)[4]) {}) != 0;
  Kept kept{{0, ~0u}, -minus_infinity()};
  if (any) kept = kept_of<C>(held);
  if constexpr (C::kMask) write_masked(p, at, held, kept);
  else Reporter<C>(p, at, held).probabilities(kept);
  held.cluster().sync();  // no CTA exits while others read its shared memory
}

}  // namespace opfacade
