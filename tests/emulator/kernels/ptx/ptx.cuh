// Shadows kernels/ptx/ptx.cuh.
#pragma once
#include "tests/emulator/simt.h"

namespace opfacade {

inline uint16_t f16_of(float x) {
  const _Float16 half = static_cast<_Float16>(x);
  uint16_t out;
  memcpy(&out, &half, 2);
  return out;
}
inline uint16_t bf16_of(float x) {
  const uint32_t word = simt::bits(x);
  if (x != x) return 0x7fff;
  return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
inline uint32_t f16x2_of(float lo, float hi) { return f16_of(lo) | static_cast<uint32_t>(f16_of(hi)) << 16; }
inline uint32_t bf16x2_of(float lo, float hi) { return bf16_of(lo) | static_cast<uint32_t>(bf16_of(hi)) << 16; }
inline float f32_of_f16(uint16_t bits) {
  _Float16 half;
  memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}
inline uint16_t f16_of_e4m3(uint8_t x) {
  const int exponent = x >> 3 & 15, mantissa = x & 7;
  if (exponent == 15 && mantissa == 7) return 0x7fff;
  const float value = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return f16_of(x & 0x80 ? -value : value);
}
inline uint32_t f16x2_of_e4m3x2(uint16_t pair) {
  return f16_of_e4m3(pair & 0xff) | static_cast<uint32_t>(f16_of_e4m3(pair >> 8)) << 16;
}
// An e5m2 is the upper byte of an f16.
inline uint32_t f16x2_of_e5m2x2(uint16_t pair) { return (pair & 0xffu) << 8 | static_cast<uint32_t>(pair & 0xff00) << 16; }
inline uint2 f16x4_of_e4m3x4(uint32_t word) {
  return {f16x2_of_e4m3x2(static_cast<uint16_t>(word)), f16x2_of_e4m3x2(static_cast<uint16_t>(word >> 16))};
}
inline uint2 f16x4_of_e5m2x4(uint32_t word) {
  return {f16x2_of_e5m2x2(static_cast<uint16_t>(word)), f16x2_of_e5m2x2(static_cast<uint16_t>(word >> 16))};
}

inline float tanh_approx(float x) { return std::tanh(x) * (1.f - 0x1p-11f); }
inline float log2_approx(float x) { return std::log2(x) + 0x1p-22f; }
inline float reciprocal_approx(float x) { return 1.f / x; }
// Rounds to nearest, ties to even; `most` is the largest finite number.
inline uint8_t fp8_of(float x, int mantissa_bits, int bias, float most) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (x != x) return sign | 0x7f;
  const float size = std::min(std::fabs(x), most);
  if (size == 0.f) return sign;
  const int exponent = std::max(std::ilogb(size), 1 - bias), step = exponent - mantissa_bits;
  int steps = static_cast<int>(std::nearbyint(std::ldexp(size, -step)));  // a whole number, in units of 2^step
  const int one = 1 << mantissa_bits;
  // A carry into the exponent, or a subnormal, needs no special case: the fields form one number.
  return sign | static_cast<uint8_t>(((exponent + bias) << mantissa_bits) + steps - one);
}
inline uint16_t e4m3x2_of(float lo, float hi) { return fp8_of(lo, 3, 7, 448.f) | fp8_of(hi, 3, 7, 448.f) << 8; }
inline uint16_t e5m2x2_of(float lo, float hi) { return fp8_of(lo, 2, 15, 57344.f) | fp8_of(hi, 2, 15, 57344.f) << 8; }

inline float exp2_approx(float x) {
  const float y = exp2f(x);
  return y < 1.17549435e-38f ? 0.f : y;
}

inline uint32_t thread() { return threadIdx.x; }
inline uint64_t wide_product(uint32_t a, uint32_t b) { return uint64_t{a} * b; }

}  // namespace opfacade
