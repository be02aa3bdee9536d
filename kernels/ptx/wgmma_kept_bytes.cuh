// Warpgroup products of e4m3 whose A stays in registers until they end, one k-step of 32 each; otherwise as in wgmma_kept.cuh and
// wgmma_bytes.cuh. a[2 c + h] packs columns 16 c + 4 t to 16 c + 4 t + 3 of row g + 8 h.
#pragma once
#include "kernels/ptx/wgmma_kept.cuh"

namespace opfacade {

// rs: d = a * b^T or d += a * b^T for k-step `step` of a panel of b.
template <int kColumns>
struct WgmmaKeptBytes;

#define OPF_WGMMA_KEPT_BYTES(N, R)                                                                                     \
  template <>                                                                                                          \
  struct WgmmaKeptBytes<N> {                                                                                           \
    static __device__ __forceinline__ void rs(float (&d)[R], const uint32_t* a, const Descriptors& b, int step, bool accumulate) { \
      asm volatile(OPF_EXPAND(OPF_WGMMA_FROM_REGISTERS_ONE, N, R, "k32.f32.e4m3.e4m3", ", 1, 1", OPF_AFTER_##R)        \
                   : OPF_OPERANDS_##R(d, 0)                                                                            \
                   : OPF_R4_WORDS(a), "r"(b.low + step * b.step), "r"(b.high), "r"(static_cast<int>(accumulate))       \
                   : "memory");                                                                                        \
    }                                                                                                                  \
  }

OPF_WGMMA_KEPT_BYTES(8, 4);
OPF_WGMMA_KEPT_BYTES(16, 8);
OPF_WGMMA_KEPT_BYTES(32, 16);
OPF_WGMMA_KEPT_BYTES(64, 32);
OPF_WGMMA_KEPT_BYTES(128, 64);

}  // namespace opfacade
