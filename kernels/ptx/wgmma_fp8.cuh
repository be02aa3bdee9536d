// Asynchronous warpgroup products of e4m3 whose A may be in registers; otherwise as in wgmma_bytes.cuh. a[2 c + h] packs columns
// 16 c + 4 t to 16 c + 4 t + 3 of row g + 8 h.
// requires: ptxas >= 13.3
#pragma once
#include "kernels/ptx/wgmma_bytes.cuh"
#include "kernels/ptx/wgmma_registers.cuh"

namespace opfacade {

OPF_WGMMA_REGISTERS(E4M3, "k32.f32.e4m3.e4m3", ", 1, 1", 128, 64);

}  // namespace opfacade
