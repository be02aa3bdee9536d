// Arithmetic of two 16-bit floats in a word, each rounded once to nearest. Subnormal numbers are kept. Before sm_90, bf16 has
// only fused multiply-add: a - b is computed as a * 1 - b, and a * b as a * b - 0, which keeps the sign of a zero product.
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
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
OPF_HALVES(BF16, "bf16x2");
#else
template <>
struct Halves<BF16> {
  static __device__ __forceinline__ uint32_t less(uint32_t a, uint32_t b) { return added(a, 0x3f803f80u, b ^ 0x80008000u); }
  static __device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) { return added(a, b, 0x80008000u); }

 private:
  static __device__ __forceinline__ uint32_t added(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
  }
};
#endif

}  // namespace opfacade
