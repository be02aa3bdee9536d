// A negative or zero sm_scale is applied to Q, so that the softmax scale is positive and a masked score of -inf stays -inf.
#pragma once
#include "kernels/ptx/dtype.cuh"
#include "kernels/paged/paged_kv.h"

namespace opfacade {

// kZero preserves NaN and Inf, as a multiplication by zero does.
template <class T>
__device__ __forceinline__ uint32_t transformed_pair(uint32_t pair, QTransform transform) {
  if (transform == QTransform::kNegate) return pair ^ 0x80008000u;
  if (transform == QTransform::kZero) return pair & halves_mask(nonfinite_halves<T>(pair));
  return pair;
}

// target exponent of the largest element of q; much smaller elements are still far from underflow
constexpr int kTopExponent = 14;

// The exponent of the power of two that scales a bf16 row with largest absolute value `top` into the range of f16; 0 if top is
// 0 or not finite. Both 2^shift and 2^-shift are normal numbers.
__device__ __forceinline__ int f16_shift(float top) {
  const int exponent = static_cast<int>(__float_as_uint(top) >> 23) - 127;
  return top == 0.f || exponent == 128 ? 0 : max(-100, min(100, kTopExponent - exponent));
}
__device__ __forceinline__ float power_of_two(int exponent) { return __uint_as_float((127 + exponent) << 23); }

// Multiplies two bf16 numbers by `up` and converts them to f16.
__device__ __forceinline__ uint32_t f16_pair(uint32_t pair, float up) {
  return F16::pack(BF16::unpack(pair & 0xffff) * up, BF16::unpack(pair >> 16) * up);
}
__device__ __forceinline__ float largest_of(uint32_t pair) {
  return fmaxf(fabsf(BF16::unpack(pair & 0xffff)), fabsf(BF16::unpack(pair >> 16)));
}

}  // namespace opfacade
