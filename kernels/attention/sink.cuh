// Attention sink: a state without a value is merged into a finished row, so it only scales o down.
#pragma once
#include "kernels/common/softmax.cuh"

namespace opfacade {

struct Sunk {
  float lse;
  float factor;  // multiplies o
};

__device__ __forceinline__ Sunk with_sink(float sink, float lse) {
  const float base = finite_max(fmaxf(lse, sink));
  const float own = exp2_approx((lse - base) * kLog2E), total = own + exp2_approx((sink - base) * kLog2E);
  return {total == 0.f ? minus_infinity() : base + logf(total), own * reciprocal_or_zero(total)};
}

}  // namespace opfacade
