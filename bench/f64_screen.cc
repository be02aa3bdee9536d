// Errors of f64 functions against those of the C library in long double, which is 2^11 times finer: a screen for mpmath.
#include <cmath>
#include <cstring>

#include "tests/emulator/special.h"

namespace {

using Real = long double;

Real rsqrt(Real x) { return x == 0 ? std::copysign(Real(INFINITY), x) : 1 / std::sqrt(x); }
Real lgamma_(Real x) { return x <= 0 && x == std::floor(x) ? Real(INFINITY) : lgammal(x); }
Real pow_(Real x, Real y) { return powl(x, y); }

struct One {
  const char* name;
  Real (*call)(Real);
};
struct Two {
  const char* name;
  Real (*call)(Real, Real);
};
const One kOnes[] = {
    {"exp", expl}, {"exp2", exp2l}, {"expm1", expm1l}, {"log", logl}, {"log2", log2l}, {"log10", log10l}, {"log1p", log1pl},
    {"sin", sinl}, {"cos", cosl}, {"tan", tanl}, {"asin", asinl}, {"acos", acosl}, {"atan", atanl}, {"sinh", sinhl},
    {"cosh", coshl}, {"tanh", tanhl}, {"asinh", asinhl}, {"acosh", acoshl}, {"atanh", atanhl}, {"erf", erfl}, {"erfc", erfcl},
    {"rsqrt", rsqrt}, {"cbrt", cbrtl}, {"lgamma", lgamma_}, {"erfinv", opfacade::special::erfinv},
    {"erfcx", opfacade::special::erfcx}, {"ndtri", opfacade::special::normcdfinv},
    {"bessel_i0", opfacade::special::cyl_bessel_i0}, {"bessel_i1", opfacade::special::cyl_bessel_i1}, {"bessel_j0", j0l},
    {"bessel_j1", j1l}, {"bessel_y0", y0l}, {"bessel_y1", y1l}};
const Two kTwos[] = {{"pow", pow_}, {"atan2", atan2l}, {"hypot", hypotl}};

// In units of 2^-52 of the value, beside the least subnormal and what is absolute; infinite where one is NaN.
double units(Real want, double got, double absolute) {
  if (want != want || got != got) return want != want && got != got ? 0 : INFINITY;
  if (std::isinf(static_cast<double>(want))) return std::fabs(got) > 1e308 && (got > 0) == (want > 0) ? 0 : INFINITY;
  const Real apart = std::fabs(got - want) - 0x1p-1074L - absolute;
  return apart <= 0 ? 0 : static_cast<double>(apart / (std::fabs(want) * 0x1p-52L));
}

}  // namespace

// 0 where the name is known. y: the second arguments; null of a function of one.
extern "C" int screen(const char* name, const double* x, const double* y, const double* got, double absolute, double* found,
                      long count) {
  for (const One& one : kOnes)
    if (!y && !std::strcmp(one.name, name)) {
      for (long i = 0; i < count; ++i) found[i] = units(one.call(x[i]), got[i], absolute);
      return 0;
    }
  for (const Two& two : kTwos)
    if (y && !std::strcmp(two.name, name)) {
      for (long i = 0; i < count; ++i) found[i] = units(two.call(x[i], y[i]), got[i], absolute);
      return 0;
    }
  return 1;
}
