// A negative or zero sm_scale is moved into Q: the softmax then scales by a positive number, and a masked score of -inf
// stays -inf.
#pragma once
#include "kernels/common/dtype.cuh"
#include "kernels/common/paged_kv.h"

namespace opfacade {

// Zeroing leaves NaN and Inf, which a product with zero would not hide either.
template <class T>
__device__ __forceinline__ uint32_t transformed_pair(uint32_t pair, QTransform transform) {
  if (transform == QTransform::kNegate) return pair ^ 0x80008000u;
  if (transform == QTransform::kZero) return pair & halves_mask(nonfinite_halves<T>(pair));
  return pair;
}

}  // namespace opfacade
