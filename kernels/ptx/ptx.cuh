// PTX instructions without side effects that have no C++ intrinsic.
#pragma once
#include <stdint.h>

namespace opfacade {

__device__ __forceinline__ uint32_t f16x2_of(float lo, float hi) {
  uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
  return out;
}
__device__ __forceinline__ uint32_t bf16x2_of(float lo, float hi) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
  return out;
}
__device__ __forceinline__ float f32_of_f16(uint16_t bits) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
  return out;
}

// Converts four fp8 values to f16, exactly (sm_89 and later). One asm statement, where the register's upper half can be an
// operand.
__device__ __forceinline__ uint2 f16x4_of_e4m3x4(uint32_t word) {
  uint2 out;
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e4m3x2 %0, a;\ncvt.rn.f16x2.e4m3x2 %1, b;\n}"
      : "=r"(out.x), "=r"(out.y) : "r"(word));
  return out;
}
__device__ __forceinline__ uint2 f16x4_of_e5m2x4(uint32_t word) {
  uint2 out;
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e5m2x2 %0, a;\ncvt.rn.f16x2.e5m2x2 %1, b;\n}"
      : "=r"(out.x), "=r"(out.y) : "r"(word));
  return out;
}

// Converts to the nearest fp8 values, saturating at the largest finite one; NaN stays NaN (sm_89 and later).
__device__ __forceinline__ uint16_t e4m3x2_of(float lo, float hi) {
  uint16_t out;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(hi), "f"(lo));
  return out;
}
__device__ __forceinline__ uint16_t e5m2x2_of(float lo, float hi) {
  uint16_t out;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(out) : "f"(hi), "f"(lo));
  return out;
}

// Error 2 ulp; results below the normal range become zero.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Error at most 2^-22 * max(1, |result|).
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Error 1 ulp.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Error at most 2^-11 of the result.
__device__ __forceinline__ float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// threadIdx.x, read again at each call, so that values that depend on it do not stay in registers during a loop over rows.
__device__ __forceinline__ uint32_t thread() {
  uint32_t out;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(out));
  return out;
}

// Full product by one instruction; the compiler would add zero products of the upper halves of 64-bit operands.
__device__ __forceinline__ uint64_t wide_product(uint32_t a, uint32_t b) {
  uint64_t out;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(out) : "r"(a), "r"(b));
  return out;
}

}  // namespace opfacade
