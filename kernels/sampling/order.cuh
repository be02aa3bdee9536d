// The order of candidates as integers: larger adjusted logit first, then the lower id.
#pragma once
#include "kernels/common/softmax.cuh"

namespace opfacade {

constexpr float kLn2 = 0.693147181f;
constexpr float kLargest = 0x1p127f;  // largest magnitude of an adjusted logit; its product with log2(e) is finite
constexpr float kMassUnit = 0x1p40f;

__device__ __forceinline__ bool is_candidate(float a) { return a > minus_infinity(); }

// Monotone; at least 1 for a number, so that 0 can mean "no value".
__device__ __forceinline__ uint32_t ordered(float a) {
  const uint32_t bits = __float_as_uint(a);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float of_ordered(uint32_t value) {
  return __uint_as_float(value & 0x80000000u ? value & 0x7fffffffu : ~value);
}

// A token and its value as one integer: the larger one comes first in the order. 0 is no token.
__device__ __forceinline__ uint64_t ranked(float key, uint32_t token) { return uint64_t{ordered(key)} << 32 | ~token; }
__device__ __forceinline__ uint32_t token_of(uint64_t ranked) { return ~static_cast<uint32_t>(ranked); }
__device__ __forceinline__ float key_of(uint64_t ranked) { return of_ordered(static_cast<uint32_t>(ranked >> 32)); }

}  // namespace opfacade
