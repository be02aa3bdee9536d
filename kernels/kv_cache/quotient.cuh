// x / factor for many x that become fp8: the bytes of a division, from a product and its correction, without a branch. A
// quotient q of one unit in the last place is made the nearest by q - (q f - x) (1 / f), if 1 / f is the nearest. q = x (1 / f)
// is that near for x of at most 11 bits: tests/families/kv_cache/test_quotient.py has tried all. A longer x takes a correction before.
#pragma once
#include "kernels/ptx/ptx.cuh"

namespace opfacade {

// Quotients keep clear of exponents in which products round twice: a factor far from one, and x with it, is moved by a
// power of two; what is too small then is zero in fp8, what is too large its largest number. Signs are moved to x, for else
// the sum of two zeros would forget one.
struct Divisor {
  float factor;  // positive; zero for an infinite one, so that a correction by it is none
  float reciprocal;
  float shift;  // of x

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

 private:
  __device__ __forceinline__ float corrected(float q, float x) const { return fmaf(fmaf(q, factor, -x), -reciprocal, q); }
};

}  // namespace opfacade
