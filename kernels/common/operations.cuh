// The operations of programs, as docs/programs.md defines them: one function per operation, overloaded by type. Every float
// operation is rounded once and never contracted, so that an exact operation has the same bits in every kernel.
#pragma once
#include "kernels/common/quotient.cuh"
#include "kernels/common/stored.cuh"

namespace opfacade {
namespace ops {

#define OPF_OP static __device__ __forceinline__
#define OPF_FLOATS(call) call(float) call(double)

template <class T> OPF_OP T add_(T a, T b) { return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
template <class T> OPF_OP T sub_(T a, T b) { return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b)); }
template <class T> OPF_OP T mul_(T a, T b) { return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); }
template <class T> OPF_OP T neg_(T a) { return static_cast<T>(0 - static_cast<uint64_t>(a)); }
template <class T> OPF_OP T abs_(T a) { return a < T(0) ? neg_(a) : a; }
template <class T> OPF_OP T sign_(T a) { return static_cast<T>((a > T(0)) - (a < T(0))); }
template <class T> OPF_OP T min_(T a, T b) { return b < a ? b : a; }
template <class T> OPF_OP T max_(T a, T b) { return a < b ? b : a; }
template <class T> OPF_OP T minimum_(T a, T b) { return min_(a, b); }
template <class T> OPF_OP T maximum_(T a, T b) { return max_(a, b); }
template <class T> constexpr bool kSigned = static_cast<T>(-1) < static_cast<T>(0);
// A division by 0 gives 0, and the least integer divided by -1 gives itself.
template <class T> OPF_OP T truncdiv_(T a, T b) {
  if (b == T(0)) return T(0);
  if (kSigned<T> && b == static_cast<T>(-1)) return neg_(a);
  return static_cast<T>(a / b);
}
template <class T> OPF_OP T rem_(T a, T b) { return b == T(0) ? T(0) : sub_(a, mul_(truncdiv_(a, b), b)); }
template <class T> OPF_OP T floordiv_(T a, T b) {
  const T rest = rem_(a, b);
  return static_cast<T>(truncdiv_(a, b) - (rest != T(0) && (rest < T(0)) != (b < T(0))));
}
template <class T> OPF_OP T mod_(T a, T b) { return b == T(0) ? T(0) : sub_(a, mul_(floordiv_(a, b), b)); }
// A shift by a count outside [0, width) gives 0; shr of a negative number gives -1.
template <class T> OPF_OP bool within_(T by) { return by >= T(0) && static_cast<uint64_t>(by) < 8 * sizeof(T); }
template <class T> OPF_OP T shl_(T a, T by) { return within_(by) ? static_cast<T>(static_cast<uint64_t>(a) << by) : T(0); }
template <class T> OPF_OP T shr_(T a, T by) { return within_(by) ? static_cast<T>(a >> by) : a < T(0) ? static_cast<T>(-1) : T(0); }
template <class T> OPF_OP T and_(T a, T b) { return static_cast<T>(a & b); }
template <class T> OPF_OP T or_(T a, T b) { return static_cast<T>(a | b); }
template <class T> OPF_OP T xor_(T a, T b) { return static_cast<T>(a ^ b); }
template <class T> OPF_OP T not_(T a) { return static_cast<T>(~a); }
OPF_OP bool not_(bool a) { return !a; }
template <class T> OPF_OP T select_(bool c, T a, T b) { return c ? a : b; }
template <class T> OPF_OP bool lt_(T a, T b) { return a < b; }
template <class T> OPF_OP bool le_(T a, T b) { return a <= b; }
template <class T> OPF_OP bool gt_(T a, T b) { return a > b; }
template <class T> OPF_OP bool ge_(T a, T b) { return a >= b; }
template <class T> OPF_OP bool eq_(T a, T b) { return a == b; }
template <class T> OPF_OP bool ne_(T a, T b) { return a != b; }

OPF_OP float maximum_(float a, float b) { return max_nan(a, b); }
OPF_OP float minimum_(float a, float b) { return min_nan(a, b); }
OPF_OP double maximum_(double a, double b) { return a != a ? a : b != b ? b : a == b ? (has_sign(a) ? b : a) : a > b ? a : b; }
OPF_OP double minimum_(double a, double b) { return a != a ? a : b != b ? b : a == b ? (has_sign(a) ? a : b) : a < b ? a : b; }

#define OPF_REAL(T)                                                                            \
  OPF_OP T add_(T a, T b) { return add_rounded(a, b); }                                        \
  OPF_OP T sub_(T a, T b) { return sub_rounded(a, b); }                                        \
  OPF_OP T mul_(T a, T b) { return mul_rounded(a, b); }                                        \
  OPF_OP T div_(T a, T b) { return div_rounded(a, b); }                                        \
  OPF_OP T sqrt_(T a) { return sqrt_rounded(a); }                                              \
  OPF_OP T neg_(T a) { return -a; }                                                            \
  OPF_OP T sign_(T a) { return a != a ? a : static_cast<T>((a > 0) - (a < 0)); }               \
  OPF_OP T fmax_(T a, T b) { return a != a ? b : b != b ? a : maximum_(a, b); }                \
  OPF_OP T fmin_(T a, T b) { return a != a ? b : b != b ? a : minimum_(a, b); }                \
  OPF_OP bool isnan_(T a) { return a != a; }                                                   \
  OPF_OP bool isfinite_(T a) { return a - a == 0; }                                            \
  OPF_OP bool isinf_(T a) { return a == a && a - a != 0; }                                     \
  OPF_OP bool signbit_(T a) { return has_sign(a); }
OPF_FLOATS(OPF_REAL)
#undef OPF_REAL

#define OPF_LIBRARY(name, f32, f64)            \
  OPF_OP float name(float a) { return f32(a); } \
  OPF_OP double name(double a) { return f64(a); }
#define OPF_UNARY_OP(word) OPF_LIBRARY(word##_, word##f, word)
OPF_LIBRARY(abs_, fabsf, fabs)
OPF_LIBRARY(round_away_, roundf, round)
OPF_UNARY_OP(floor) OPF_UNARY_OP(ceil) OPF_UNARY_OP(trunc) OPF_UNARY_OP(rint)
OPF_UNARY_OP(exp) OPF_UNARY_OP(exp2) OPF_UNARY_OP(expm1) OPF_UNARY_OP(log) OPF_UNARY_OP(log2) OPF_UNARY_OP(log10)
OPF_UNARY_OP(log1p) OPF_UNARY_OP(sin) OPF_UNARY_OP(cos) OPF_UNARY_OP(tan) OPF_UNARY_OP(asin) OPF_UNARY_OP(acos)
OPF_UNARY_OP(atan) OPF_UNARY_OP(sinh) OPF_UNARY_OP(cosh) OPF_UNARY_OP(tanh) OPF_UNARY_OP(asinh) OPF_UNARY_OP(acosh)
OPF_UNARY_OP(atanh) OPF_UNARY_OP(erf) OPF_UNARY_OP(erfc) OPF_UNARY_OP(rsqrt) OPF_UNARY_OP(cbrt) OPF_UNARY_OP(lgamma)
OPF_UNARY_OP(erfinv) OPF_UNARY_OP(erfcx)
OPF_LIBRARY(ndtri_, normcdfinvf, normcdfinv)
OPF_LIBRARY(bessel_i0_, cyl_bessel_i0f, cyl_bessel_i0) OPF_LIBRARY(bessel_i1_, cyl_bessel_i1f, cyl_bessel_i1)
OPF_LIBRARY(bessel_j0_, j0f, j0) OPF_LIBRARY(bessel_j1_, j1f, j1)
OPF_LIBRARY(bessel_y0_, y0f, y0) OPF_LIBRARY(bessel_y1_, y1f, y1)
#undef OPF_UNARY_OP
#undef OPF_LIBRARY
#define OPF_BINARY_OP(word)                                                     \
  OPF_OP float word##_(float a, float b) { return word##f(a, b); }              \
  OPF_OP double word##_(double a, double b) { return word(a, b); }
OPF_BINARY_OP(pow) OPF_BINARY_OP(atan2) OPF_BINARY_OP(hypot) OPF_BINARY_OP(copysign)
#undef OPF_BINARY_OP
OPF_OP float rem_(float a, float b) { return fmodf(a, b); }
OPF_OP double rem_(double a, double b) { return fmod(a, b); }
OPF_OP float mod_(float a, float b) {
  const float rest = rem_(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? add_(rest, b) : rest;
}
OPF_OP double mod_(double a, double b) {
  const double rest = rem_(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? add_(rest, b) : rest;
}

// Bit patterns; all NaNs have the same pattern.
OPF_OP int32_t as_bits_(float a) { return a != a ? 0x7fc00000 : static_cast<int32_t>(__float_as_uint(a)); }
OPF_OP int64_t as_bits_(double a) { return a != a ? 0x7ff8000000000000 : static_cast<int64_t>(bits_of_double(a)); }
OPF_OP float from_bits_(int32_t a) { return __uint_as_float(static_cast<uint32_t>(a)); }
OPF_OP double from_bits_(int64_t a) { return double_of_bits(static_cast<uint64_t>(a)); }

template <class T> OPF_OP float rounded_to(float a) { return Stored<T>::load(Stored<T>::store(a)); }
OPF_OP float round_f16_(float a) { return rounded_to<F16>(a); }
OPF_OP float round_bf16_(float a) { return rounded_to<BF16>(a); }
OPF_OP float round_f8_e4m3_(float a) { return rounded_to<E4M3>(a); }
OPF_OP float round_f8_e5m2_(float a) { return rounded_to<E5M2>(a); }
OPF_OP float round_f8_e8m0_(float a) { return rounded_to<E8M0>(a); }

// a / b for a result that is then stored in 8 bits: the stored bits are those of the exact quotient. short: a has at most 11
// bits.
OPF_OP float quotient_(float a, float b) { return Divisor(b).of<false>(a); }
OPF_OP float quotient_short_(float a, float b) { return Divisor(b).of<true>(a); }

// Conversions: integers wrap; a float is truncated toward zero and saturates; NaN becomes 0 as an integer and true as a bool.
template <class To, class From>
struct Cast {
  static __device__ __forceinline__ To of(From a) { return static_cast<To>(a); }
};
template <class To, class From>
struct Saturated {
  static __device__ __forceinline__ To of(From a) {
    constexpr int kBits = 8 * sizeof(To) - kSigned<To>;
    constexpr To kMost = static_cast<To>(~uint64_t{0} >> (64 - kBits)), kLeast = kSigned<To> ? static_cast<To>(-kMost - 1) : To(0);
    constexpr From kEnd = static_cast<From>(uint64_t{1} << (kBits - 1)) * 2;
    if (a != a) return To(0);
    return a >= kEnd ? kMost : a <= static_cast<From>(kLeast) ? kLeast : static_cast<To>(a);
  }
};
#define OPF_SATURATED(To)                                \
  template <> struct Cast<To, float> : Saturated<To, float> {}; \
  template <> struct Cast<To, double> : Saturated<To, double> {};
OPF_SATURATED(int8_t) OPF_SATURATED(int16_t) OPF_SATURATED(int32_t) OPF_SATURATED(int64_t)
OPF_SATURATED(uint8_t) OPF_SATURATED(uint16_t) OPF_SATURATED(uint32_t) OPF_SATURATED(uint64_t)
#undef OPF_SATURATED
template <class From>
struct Cast<bool, From> {
  static __device__ __forceinline__ bool of(From a) { return a != From(0); }
};
template <>
struct Cast<bool, float> {
  static __device__ __forceinline__ bool of(float a) { return a != 0.f; }
};
template <>
struct Cast<bool, double> {
  static __device__ __forceinline__ bool of(double a) { return a != 0.; }
};
template <class To, class From> OPF_OP To cast_(From a) { return Cast<To, From>::of(a); }

// Approximate f32 operations; `programs/ulps.py` has their error bounds.
OPF_OP float exp_approx_(float a) { return exp2_approx(mul_rounded(a, 1.44269504f)); }
OPF_OP float exp2_approx_(float a) { return exp2_approx(a); }
OPF_OP float div_approx_(float a, float b) { return quotient_full(a, b); }
OPF_OP float div_plain_approx_(float a, float b) { return quotient_plain(a, b); }
OPF_OP float rsqrt_approx_(float a) { return rsqrt_approx(a); }
OPF_OP float sqrt_approx_(float a) { return sqrt_approx(a); }
// Uses a polynomial near 0, where 1 - 2 / (exp(2 a) + 1) would lose its digits.
OPF_OP float tanh_approx_(float a) {
  const float size = fabsf(a), square = mul_rounded(a, a);
  const float series = fmaf(square, fmaf(square, fmaf(square, fmaf(square, 62.f / 2835, -17.f / 315), 2.f / 15), -1.f / 3), 1.f);
  const float far = fmaf(-2.f, reciprocal_approx(exp2_approx(mul_rounded(size, 2.88539008f)) + 1.f), 1.f);
  return size < 0.3f ? mul_rounded(a, series) : copysignf(far, a);
}

// Word index % 4 of Philox4x32-10 with the key `seed` and the counter (offset + index / 4, stream).
OPF_OP uint32_t bits_(uint64_t seed, uint64_t offset, uint64_t index, uint64_t stream) {
  const uint64_t counter = offset + index / 4;
  uint32_t w[4] = {uint32_t(counter), uint32_t(counter >> 32), uint32_t(stream), uint32_t(stream >> 32)};
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * w[0], b = uint64_t{0xCD9E8D57u} * w[2];
    const uint32_t first = uint32_t(b >> 32) ^ w[1] ^ k0, third = uint32_t(a >> 32) ^ w[3] ^ k1;
    w[0] = first, w[1] = uint32_t(b), w[2] = third, w[3] = uint32_t(a);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return index % 4 == 0 ? w[0] : index % 4 == 1 ? w[1] : index % 4 == 2 ? w[2] : w[3];
}

#undef OPF_OP
#undef OPF_FLOATS

}  // namespace ops
}  // namespace opfacade
