// Warpgroup products of 64 x 8 and 64 x 16; otherwise as in wgmma.cuh and wgmma_layouts.cuh. A may be transposed.
#pragma once
#include "kernels/ptx/wgmma_few.cuh"
#include "kernels/ptx/wgmma_layouts.cuh"

namespace opfacade {

#define OPF_WGMMA_NARROW(T, NAME, N, R) \
  OPF_WGMMA_LAYOUT(T, NAME, N, R, false, false, ", 1, 1, 0, 0"); \
  OPF_WGMMA_LAYOUT(T, NAME, N, R, true, false, ", 1, 1, 1, 0")

OPF_WGMMA_NARROW(F16, "f16", 8, 4);
OPF_WGMMA_NARROW(F16, "f16", 16, 8);
OPF_WGMMA_NARROW(BF16, "bf16", 8, 4);
OPF_WGMMA_NARROW(BF16, "bf16", 16, 8);

}  // namespace opfacade
