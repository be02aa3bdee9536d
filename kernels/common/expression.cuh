// Operations of user expressions (docs/variants.md). Exact: every f32 operation is rounded once, to nearest, and never fused.
// Fused: the compiler may contract a multiplication and an addition, which then have one rounding instead of two.
#pragma once
#include "kernels/ptx/float_math.cuh"
#include "kernels/ptx/ptx.cuh"

namespace opfacade {

// i32 arithmetic is modulo 2^32. Quotients round down; division by 0 gives quotient 0 and remainder 0.
struct Integers {
  static __device__ __forceinline__ uint32_t u(int32_t a) { return static_cast<uint32_t>(a); }
  static __device__ __forceinline__ int32_t add_(int32_t a, int32_t b) { return static_cast<int32_t>(u(a) + u(b)); }
  static __device__ __forceinline__ int32_t sub_(int32_t a, int32_t b) { return static_cast<int32_t>(u(a) - u(b)); }
  static __device__ __forceinline__ int32_t mul_(int32_t a, int32_t b) { return static_cast<int32_t>(u(a) * u(b)); }
  static __device__ __forceinline__ int32_t neg_(int32_t a) { return sub_(0, a); }
  static __device__ __forceinline__ int32_t abs_(int32_t a) { return a < 0 ? neg_(a) : a; }
  static __device__ __forceinline__ int32_t floordiv_(int32_t a, int32_t b) {
    if (b == 0) return 0;
    if (b == -1) return neg_(a);  // the smallest i32 has no negation
    const int32_t quotient = a / b;
    return quotient - (a % b != 0 && (a < 0) != (b < 0));
  }
  static __device__ __forceinline__ int32_t mod_(int32_t a, int32_t b) {
    return b == 0 ? 0 : sub_(a, mul_(floordiv_(a, b), b));
  }
};

// Operations that are exact in every mode, for any type.
struct Common : Integers {
  static __device__ __forceinline__ float neg_(float a) { return -a; }
  static __device__ __forceinline__ float abs_(float a) { return fabsf(a); }
  static __device__ __forceinline__ float floor_(float a) { return floorf(a); }
  static __device__ __forceinline__ float f32_(int32_t a) { return static_cast<float>(a); }
  static __device__ __forceinline__ int32_t i32_(float a) { return __float2int_rz(a); }
  // Returns a if a or b is NaN.
  template <class T>
  static __device__ __forceinline__ T min_(T a, T b) { return b < a ? b : a; }
  template <class T>
  static __device__ __forceinline__ T max_(T a, T b) { return a < b ? b : a; }
  // Returns NaN if a or b is NaN, and orders +0 above -0.
  static __device__ __forceinline__ float minimum_(float a, float b) { return min_nan(a, b); }
  static __device__ __forceinline__ float maximum_(float a, float b) { return max_nan(a, b); }
  static __device__ __forceinline__ int32_t minimum_(int32_t a, int32_t b) { return min_(a, b); }
  static __device__ __forceinline__ int32_t maximum_(int32_t a, int32_t b) { return max_(a, b); }
  template <class T>
  static __device__ __forceinline__ bool lt_(T a, T b) { return a < b; }
  template <class T>
  static __device__ __forceinline__ bool le_(T a, T b) { return a <= b; }
  template <class T>
  static __device__ __forceinline__ bool gt_(T a, T b) { return a > b; }
  template <class T>
  static __device__ __forceinline__ bool ge_(T a, T b) { return a >= b; }
  template <class T>
  static __device__ __forceinline__ bool eq_(T a, T b) { return a == b; }
  template <class T>
  static __device__ __forceinline__ bool ne_(T a, T b) { return a != b; }
  template <class T>
  static __device__ __forceinline__ T select_(bool c, T a, T b) { return c ? a : b; }
  static __device__ __forceinline__ bool and_(bool a, bool b) { return a && b; }
  static __device__ __forceinline__ bool or_(bool a, bool b) { return a || b; }
  static __device__ __forceinline__ bool not_(bool a) { return !a; }
  using Integers::abs_;
  using Integers::neg_;
};

struct Exact : Common {
  using Integers::add_;
  using Integers::mul_;
  using Integers::sub_;
  static __device__ __forceinline__ float add_(float a, float b) { return __fadd_rn(a, b); }
  static __device__ __forceinline__ float sub_(float a, float b) { return __fsub_rn(a, b); }
  static __device__ __forceinline__ float mul_(float a, float b) { return __fmul_rn(a, b); }
  static __device__ __forceinline__ float div_(float a, float b) { return __fdiv_rn(a, b); }
  static __device__ __forceinline__ float sqrt_(float a) { return __fsqrt_rn(a); }
};

struct Fused : Common {
  using Integers::add_;
  using Integers::mul_;
  using Integers::sub_;
  static __device__ __forceinline__ float add_(float a, float b) { return a + b; }
  static __device__ __forceinline__ float sub_(float a, float b) { return a - b; }
  static __device__ __forceinline__ float mul_(float a, float b) { return a * b; }
  static __device__ __forceinline__ float div_(float a, float b) { return a / b; }
  static __device__ __forceinline__ float sqrt_(float a) { return sqrtf(a); }
  static __device__ __forceinline__ float exp2_(float a) { return exp2f(a); }
  static __device__ __forceinline__ float log2_(float a) { return log2f(a); }
  // Branch-free, unlike tanhf, so that asynchronous products continue meanwhile. The absolute error is below 2^-21.
  static __device__ __forceinline__ float tanh_(float a) {
    return fmaf(-2.f, reciprocal_approx(exp2_approx(a * (2.f * 1.4426950408889634f)) + 1.f), 1.f);
  }
};

}  // namespace opfacade
