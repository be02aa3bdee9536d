// Warpgroup products of operands in shared memory of which either may be transposed. Otherwise as in wgmma.cuh.
//
// An operand is transposed if its rows run along the panel: a panel then has 64 of its rows in 128 bytes, with one line per
// reduction element. The next 16 reduction elements are two blocks further.
#pragma once
#include "kernels/ptx/wgmma.cuh"

namespace opfacade {

// multiply: d = a * b^T or d += a * b^T, four k-steps. kA, kB: that operand is transposed.
template <class T, int kColumns, bool kA, bool kB>
struct WgmmaLayouts {
  static_assert(!kA && !kB, "this width has no instruction of that layout");
  static __device__ __forceinline__ void multiply(float (&d)[kColumns / 2], const Descriptors& a, const Descriptors& b, bool accumulate) {
    Wgmma<T, kColumns>::ss(d, a, b, accumulate);
  }
};

#define OPF_WGMMA_LAYOUT(T, NAME, N, R, A, B, FLAGS)                                                                   \
  template <>                                                                                                          \
  struct WgmmaLayouts<T, N, A, B> {                                                                                    \
    static __device__ __forceinline__ void multiply(float (&d)[R], const Descriptors& a, const Descriptors& b, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_SHARED, N, R, "k16.f32." NAME "." NAME, "p", FLAGS, OPF_AFTER_##R)             \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_DESCRIPTORS(a), OPF_DESCRIPTORS(b), "r"(static_cast<int>(accumulate))                         \
                   : "memory");                                                                                        \
    }                                                                                                                  \
  }
#define OPF_WGMMA_LAYOUTS(T, NAME, N, R)                             \
  OPF_WGMMA_LAYOUT(T, NAME, N, R, false, true, ", 1, 1, 0, 1");      \
  OPF_WGMMA_LAYOUT(T, NAME, N, R, true, false, ", 1, 1, 1, 0");      \
  OPF_WGMMA_LAYOUT(T, NAME, N, R, true, true, ", 1, 1, 1, 1")

OPF_WGMMA_LAYOUT(F16, "f16", 32, 16, true, false, ", 1, 1, 1, 0");
OPF_WGMMA_LAYOUTS(F16, "f16", 64, 32);
OPF_WGMMA_LAYOUTS(F16, "f16", 128, 64);
OPF_WGMMA_LAYOUT(F16, "f16", 160, 80, true, false, ", 1, 1, 1, 0");
OPF_WGMMA_LAYOUTS(F16, "f16", 192, 96);
OPF_WGMMA_LAYOUT(F16, "f16", 224, 112, true, false, ", 1, 1, 1, 0");
OPF_WGMMA_LAYOUTS(F16, "f16", 256, 128);
OPF_WGMMA_LAYOUT(BF16, "bf16", 32, 16, true, false, ", 1, 1, 1, 0");
OPF_WGMMA_LAYOUTS(BF16, "bf16", 64, 32);
OPF_WGMMA_LAYOUTS(BF16, "bf16", 128, 64);
OPF_WGMMA_LAYOUT(BF16, "bf16", 160, 80, true, false, ", 1, 1, 1, 0");
OPF_WGMMA_LAYOUTS(BF16, "bf16", 192, 96);
OPF_WGMMA_LAYOUT(BF16, "bf16", 224, 112, true, false, ", 1, 1, 1, 0");
OPF_WGMMA_LAYOUTS(BF16, "bf16", 256, 128);

}  // namespace opfacade
