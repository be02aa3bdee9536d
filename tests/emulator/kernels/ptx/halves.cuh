// Shadows kernels/ptx/halves.cuh.
#pragma once
#include "kernels/ptx/dtype.cuh"

namespace opfacade {

template <class T>
struct Halves {
  static float low(uint32_t pair) { return T::unpack(static_cast<uint16_t>(pair)); }
  static float high(uint32_t pair) { return T::unpack(static_cast<uint16_t>(pair >> 16)); }
  // Differences and products of two halves are exact in f64, and usually in f32.
  static uint32_t less(uint32_t a, uint32_t b) { return T::pack(low(a) - low(b), high(a) - high(b)); }
  static uint32_t times(uint32_t a, uint32_t b) { return T::pack(low(a) * low(b), high(a) * high(b)); }
};

}  // namespace opfacade
