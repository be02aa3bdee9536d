// f32 functions, rounded once from f64: their errors are smaller than those of a GPU, whichever math library is installed.
// Operations of programs are in this namespace, so their calls find these functions before the library's.
#pragma once
#include <cmath>

#include "special.h"

namespace opfacade::ops {

#define OPF_ROUNDED(name) \
  inline float name##f(float a) { return static_cast<float>(::name(static_cast<double>(a))); }
OPF_ROUNDED(exp) OPF_ROUNDED(exp2) OPF_ROUNDED(expm1) OPF_ROUNDED(log) OPF_ROUNDED(log2) OPF_ROUNDED(log10)
OPF_ROUNDED(log1p) OPF_ROUNDED(sin) OPF_ROUNDED(cos) OPF_ROUNDED(tan) OPF_ROUNDED(asin) OPF_ROUNDED(acos)
OPF_ROUNDED(atan) OPF_ROUNDED(sinh) OPF_ROUNDED(cosh) OPF_ROUNDED(tanh) OPF_ROUNDED(asinh) OPF_ROUNDED(acosh)
OPF_ROUNDED(atanh) OPF_ROUNDED(erf) OPF_ROUNDED(erfc) OPF_ROUNDED(cbrt) OPF_ROUNDED(lgamma)
OPF_ROUNDED(j0) OPF_ROUNDED(j1) OPF_ROUNDED(y0) OPF_ROUNDED(y1)
#undef OPF_ROUNDED

#define OPF_ROUNDED(name)                  \
  inline float name##f(float a, float b) { \
    return static_cast<float>(::name(static_cast<double>(a), static_cast<double>(b))); \
  }
OPF_ROUNDED(pow) OPF_ROUNDED(atan2) OPF_ROUNDED(hypot)
#undef OPF_ROUNDED

#define OPF_ROUNDED(name)                                                                             \
  inline double name(double a) { return static_cast<double>(special::name(a)); }                       \
  inline float name##f(float a) { return static_cast<float>(special::name(static_cast<long double>(a))); }
OPF_ROUNDED(erfinv) OPF_ROUNDED(erfcx) OPF_ROUNDED(normcdfinv) OPF_ROUNDED(cyl_bessel_i0) OPF_ROUNDED(cyl_bessel_i1)
#undef OPF_ROUNDED

}  // namespace opfacade::ops
