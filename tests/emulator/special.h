// Functions that CUDA has and the C++ library lacks, in long double.
#pragma once
#include <cmath>

namespace opfacade::special {

constexpr long double kPi = 3.14159265358979323846264338327950288L;

// y with erfc(y) = q, for q in (0, 1]: Newton on the logarithm, which is nearly a parabola.
inline long double erfc_inverse(long double q) {
  long double y = q > 0.5L ? 0.8862269254527580137L * (1 - q) : std::sqrt(-std::log(q));
  for (int i = 0; i < 60; ++i) {
    const long double tail = std::erfc(y);
    const long double step = (std::log(tail) - std::log(q)) * tail * std::sqrt(kPi) / 2 * std::exp(y * y);
    y += step;
    if (std::fabs(step) <= 1e-19L * std::fabs(y)) break;
  }
  return y;
}

inline long double erfinv(long double x) {
  const long double size = std::fabs(x);
  if (!(size <= 1)) return NAN;
  if (size == 1) return std::copysign(static_cast<long double>(INFINITY), x);
  if (size > 0.5L) return std::copysign(erfc_inverse(1 - size), x);
  long double y = 0.8862269254527580137L * x;
  for (int i = 0; i < 60; ++i) {
    const long double step = (std::erf(y) - x) * std::sqrt(kPi) / 2 * std::exp(y * y);
    y -= step;
    if (std::fabs(step) <= 1e-19L * std::fabs(y)) break;
  }
  return y;
}

inline long double normcdfinv(long double p) {
  if (!(p >= 0 && p <= 1)) return NAN;
  if (p == 0 || p == 1) return p == 0 ? -INFINITY : INFINITY;
  if (p < 0.25L) return -std::sqrt(2.0L) * erfc_inverse(2 * p);
  return std::sqrt(2.0L) * erfinv(2 * p - 1);
}

// The square is split, so that its rounding does not grow through exp.
inline long double erfcx(long double x) {
  if (x != x) return x;
  if (x > 50) {
    const long double t = 1 / (2 * x * x);
    return (1 - t * (1 - 3 * t * (1 - 5 * t * (1 - 7 * t * (1 - 9 * t))))) / (x * std::sqrt(kPi));
  }
  if (x < -107) return INFINITY;
  const long double square = x * x, rest = std::fma(x, x, -square);
  return std::exp(square) * (1 + rest) * std::erfc(x);
}

// The series of positive terms, and beyond 40 the asymptotic series.
inline long double bessel_i(int order, long double x) {
  const long double size = std::fabs(x);
  long double sum = 0, term = 1;
  if (size > 1000) return INFINITY;
  if (size <= 40) {
    term = order ? size / 2 : 1;
    for (int k = 1; k < 200 && term > sum * 1e-21L; ++k) sum += term, term *= size * size / 4 / (k * (k + order));
    return sum;
  }
  for (int k = 0; k < 40; ++k) {
    sum += term;
    term *= -(4.0L * order * order - (2 * k + 1) * (2 * k + 1)) / (8 * (k + 1) * size);
  }
  return std::exp(size / 2) * sum / std::sqrt(2 * kPi * size) * std::exp(size / 2);
}
inline long double cyl_bessel_i0(long double x) { return x != x ? x : bessel_i(0, x); }
inline long double cyl_bessel_i1(long double x) { return x != x ? x : std::copysign(bessel_i(1, x), x); }

}  // namespace opfacade::special
