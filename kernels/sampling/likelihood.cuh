// Probabilities of tokens relative to the most likely one, as integer masses, so that the order of a sum does not matter.
#pragma once
#include "kernels/sampling/row.cuh"

namespace opfacade {

// The probability of a token relative to the most likely one.
template <class C>
struct Likelihood {
  float top;

  static __device__ __forceinline__ Likelihood of(float most) {
    return {C::kShares ? most : __fmul_rn(Row<C>::finite(most), kLog2E)};
  }
  // Octaves below the most likely token; not negative.
  __device__ __forceinline__ float below(float a) const { return __fsub_rn(top, __fmul_rn(Row<C>::finite(a), kLog2E)); }
  // The weight of a candidate; the most likely one has weight 1.
  __device__ __forceinline__ float weight(float a) const { return C::kShares ? __fdiv_rn(a, top) : exp2_approx(-below(a)); }
  // The weight in units of 2^-40: an integer, so that the order of a sum does not matter.
  __device__ __forceinline__ uint64_t mass(float a) const { return static_cast<uint64_t>(fmaf(weight(a), kMassUnit, 0.5f)); }
  // Increases as a candidate becomes less likely; min_p bounds it.
  __device__ __forceinline__ float distance(float a) const { return C::kShares ? -weight(a) : below(a); }
};

// The mass at which a prefix with share p ends, at least 1, so that the first candidate is kept.
__device__ __forceinline__ uint64_t need_of(float p, uint64_t mass) {
  const double need = static_cast<double>(mass) * static_cast<double>(fmaxf(p, 0.f));
  const uint64_t truncated = static_cast<uint64_t>(need);
  return max(uint64_t{1}, truncated + (static_cast<double>(truncated) < need));
}

}  // namespace opfacade
