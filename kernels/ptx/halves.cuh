// Arithmetic of two 16-bit floats in a word, each rounded to the nearest once. Subnormal numbers stay.
#pragma once
#include "kernels/ptx/dtype.cuh"

namespace opfacade {

template <class T>
struct Halves;

#define OPF_HALVES(T, NAME)                                                         \
  template <>                                                                       \
  struct Halves<T> {                                                                \
    static __device__ __forceinline__ uint32_t less(uint32_t a, uint32_t b) {       \
      uint32_t out;                                                                 \
      asm("sub.rn." NAME " %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));              \
      return out;                                                                   \
    }                                                                               \
    static __device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) {      \
      uint32_t out;                                                                 \
      asm("mul.rn." NAME " %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));              \
      return out;                                                                   \
    }                                                                               \
  }

OPF_HALVES(F16, "f16x2");
OPF_HALVES(BF16, "bf16x2");

}  // namespace opfacade
