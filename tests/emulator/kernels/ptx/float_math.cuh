// Shadows kernels/ptx/float_math.cuh.
#pragma once
#include "tests/emulator/simt.h"

inline float rsqrtf(float a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); }
inline double rsqrt(double a) { return 1.0 / std::sqrt(a); }

namespace opfacade {

template <class T> T add_rounded(T a, T b) { return a + b; }
template <class T> T sub_rounded(T a, T b) { return a - b; }
template <class T> T mul_rounded(T a, T b) { return a * b; }
template <class T> T div_rounded(T a, T b) { return a / b; }
template <class T> T sqrt_rounded(T a) { return std::sqrt(a); }

template <class T> bool has_sign(T a) { return std::signbit(a); }
inline uint64_t bits_of_double(double a) {
  uint64_t out;
  memcpy(&out, &a, 8);
  return out;
}
inline double double_of_bits(uint64_t a) {
  double out;
  memcpy(&out, &a, 8);
  return out;
}

inline float max_nan(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return NAN;
  return a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
}
inline float min_nan(float a, float b) { return -max_nan(-a, -b); }

// One unit in the last place too large, so that a missing correction to the nearest number is detected.
inline float off(float a) { return std::isfinite(a) && a != 0 ? std::nextafter(a, INFINITY) : a; }
inline float quotient_full(float a, float b) { return off(a / b); }
inline float quotient_plain(float a, float b) { return quotient_full(a, b); }
inline float rsqrt_approx(float a) { return off(rsqrtf(a)); }
inline float sqrt_approx(float a) { return off(std::sqrt(a)); }

}  // namespace opfacade
