// Device-side CUDA without the host API. The build includes this in front of every device source instead of cuda_runtime.h,
// whose host API and C++ headers take 0.4 s to parse, longer than most kernels compile.
//
// Types, built-in variables and intrinsics are the toolkit's own declarations. Math functions are declared here by their
// builtin names instead of through <cmath>. A source that needs the full header contains the line `// needs: cuda_runtime.h`.
#pragma once
#ifndef __CUDA_RUNTIME_API_H__  // otherwise the full header was included, by an editor or on request
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#define __CUDA_RUNTIME_API_H__
#define CUDARTAPI
#define __TEXTURE_INDIRECT_FUNCTIONS_H__
#define __SURFACE_INDIRECT_FUNCTIONS_H__
#include <stddef.h>
#include <stdint.h>

#include <vector_types.h>

// Declared before the intrinsics, some of which use these on some architectures.
extern "C" {
__device__ __device_builtin__ void* memcpy(void*, const void*, size_t) throw();
__device__ __device_builtin__ void* memset(void*, int, size_t) throw();
#define OPF_UNARY(name)                                       \
  __device__ __device_builtin__ float name##f(float) throw(); \
  __device__ __device_builtin__ double name(double) throw();
#define OPF_BINARY(name)                                             \
  __device__ __device_builtin__ float name##f(float, float) throw(); \
  __device__ __device_builtin__ double name(double, double) throw();
OPF_UNARY(fabs) OPF_UNARY(floor) OPF_UNARY(ceil) OPF_UNARY(trunc) OPF_UNARY(rint) OPF_UNARY(round)
OPF_UNARY(sqrt) OPF_UNARY(rsqrt) OPF_UNARY(exp) OPF_UNARY(exp2) OPF_UNARY(expm1)
OPF_UNARY(log) OPF_UNARY(log2) OPF_UNARY(log1p) OPF_UNARY(sin) OPF_UNARY(cos) OPF_UNARY(tanh) OPF_UNARY(erf)
OPF_UNARY(log10) OPF_UNARY(tan) OPF_UNARY(asin) OPF_UNARY(acos) OPF_UNARY(atan) OPF_UNARY(sinh) OPF_UNARY(cosh)
OPF_UNARY(asinh) OPF_UNARY(acosh) OPF_UNARY(atanh) OPF_UNARY(erfc) OPF_UNARY(cbrt) OPF_UNARY(lgamma)
OPF_UNARY(erfinv) OPF_UNARY(erfcx) OPF_UNARY(normcdfinv) OPF_UNARY(cyl_bessel_i0) OPF_UNARY(cyl_bessel_i1)
OPF_UNARY(j0) OPF_UNARY(j1) OPF_UNARY(y0) OPF_UNARY(y1)
OPF_BINARY(atan2) OPF_BINARY(hypot)
OPF_BINARY(fmin) OPF_BINARY(fmax) OPF_BINARY(pow) OPF_BINARY(fmod) OPF_BINARY(copysign)
#undef OPF_UNARY
#undef OPF_BINARY
__device__ __device_builtin__ float fmaf(float, float, float) throw();
__device__ __device_builtin__ double fma(double, double, double) throw();
__device__ __device_builtin__ void sincosf(float, float*, float*) throw();
}

// min and max of one type; mixed types are ambiguous on purpose.
#define OPF_LEAST_AND_MOST(T)                                                 \
  static __device__ __forceinline__ T min(T a, T b) { return a < b ? a : b; } \
  static __device__ __forceinline__ T max(T a, T b) { return a > b ? a : b; }
OPF_LEAST_AND_MOST(int)
OPF_LEAST_AND_MOST(unsigned)
OPF_LEAST_AND_MOST(long)
OPF_LEAST_AND_MOST(unsigned long)
OPF_LEAST_AND_MOST(long long)
OPF_LEAST_AND_MOST(unsigned long long)
#undef OPF_LEAST_AND_MOST
static __device__ __forceinline__ float min(float a, float b) { return fminf(a, b); }
static __device__ __forceinline__ float max(float a, float b) { return fmaxf(a, b); }
static __device__ __forceinline__ double min(double a, double b) { return fmin(a, b); }
static __device__ __forceinline__ double max(double a, double b) { return fmax(a, b); }

#include <vector_functions.h>
#include <crt/device_functions.h>
#include <device_launch_parameters.h>
#endif
