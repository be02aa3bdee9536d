#pragma once
#include "kernels/testing/scale_params.h"

namespace opfacade {

template <int kThreads>
__device__ __forceinline__ void scale_block(const ScaleParams& p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < p.n) p.y[i] = p.factor * p.x[i];
}

}  // namespace opfacade
