// x / factor rounded to fp8 or i8, bit-equal to a division, from a product and a correction, without a branch. The correction q
// - (q f - x) (1 / f) rounds a quotient q within 1 ulp to nearest, if 1 / f is correctly rounded. q = x (1 / f) is within 1 ulp
// for x of at most 11 bits (exhaustive: tests/families/kv_cache/test_quotient.py); a longer x needs one more correction. The
// compiler computes the parts that depend on the factor alone once for all x.
#pragma once
#include "kernels/ptx/ptx.cuh"

namespace opfacade {

// Keeps quotients out of the exponent range in which products round twice: a factor far from 1 is scaled by a power of two
// together with x. Results that are then too small are zero in fp8, and too large results are its maximum. x takes the sign of
// the factor, because the sum of two zeros would lose it.
struct Divisor {
  float factor;  // positive; 0 if infinite, which disables the correction
  float reciprocal;
  float shift;  // power of two applied to x

  Divisor() = default;
  __device__ __forceinline__ explicit Divisor(float by) {
    const float size = fabsf(by);
    const float power = size < 0x1p-30f ? 0x1p96f : size > 0x1p30f ? 0x1p-64f : 1.f;
    shift = copysignf(power, by);
    factor = size * power;
    reciprocal = 1.f / factor;
    if (reciprocal == 0.f) factor = 0.f;
  }

  template <bool kShort, int kCount>
  __device__ __forceinline__ void divide(float (&x)[kCount]) const {
    if (shift != 1.f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] *= shift;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float rough = x[i] * reciprocal, q = kShort ? rough : corrected(rough, x[i]);
      x[i] = fabsf(rough) < 0x1p60f ? corrected(q, x[i]) : rough;
    }
  }

  template <bool kShort>
  __device__ __forceinline__ float of(float x) const {
    const float shifted = x * shift, rough = shifted * reciprocal, q = kShort ? rough : corrected(rough, shifted);
    return fabsf(rough) < 0x1p60f ? corrected(q, shifted) : rough;
  }

 private:
  __device__ __forceinline__ float corrected(float q, float x) const { return fmaf(fmaf(q, factor, -x), -reciprocal, q); }
};

}  // namespace opfacade
