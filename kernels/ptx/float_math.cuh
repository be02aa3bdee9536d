// f32 and f64 arithmetic that is rounded once and never contracted, and approximate instructions.
#pragma once
#include <stdint.h>

namespace opfacade {

__device__ __forceinline__ float add_rounded(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double add_rounded(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ float sub_rounded(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ double sub_rounded(double a, double b) { return __dsub_rn(a, b); }
__device__ __forceinline__ float mul_rounded(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double mul_rounded(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float div_rounded(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double div_rounded(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ float sqrt_rounded(float a) { return __fsqrt_rn(a); }
__device__ __forceinline__ double sqrt_rounded(double a) { return __dsqrt_rn(a); }

__device__ __forceinline__ bool has_sign(float a) { return __float_as_uint(a) >> 31; }
__device__ __forceinline__ bool has_sign(double a) { return __double_as_longlong(a) < 0; }
__device__ __forceinline__ uint64_t bits_of_double(double a) { return static_cast<uint64_t>(__double_as_longlong(a)); }
__device__ __forceinline__ double double_of_bits(uint64_t a) { return __longlong_as_double(static_cast<long long>(a)); }

// Maximum and minimum: NaN if either operand is NaN; -0 is less than +0.
__device__ __forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ __forceinline__ float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// Error at most 2 ulp, over the whole range.
__device__ __forceinline__ float quotient_full(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
// Same bits as quotient_full for divisors between 2^-126 and 2^126, for which operands need no scaling.
__device__ __forceinline__ float quotient_plain(float a, float b) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(b));
  return __fmul_rn(a, y);
}
// Error at most 2 ulp.
__device__ __forceinline__ float rsqrt_approx(float a) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(a));
  return y;
}
// Error at most 3 ulp.
__device__ __forceinline__ float sqrt_approx(float a) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(a));
  return y;
}

}  // namespace opfacade
