// Shadows kernels/ptx/wgmma_registers.cuh.
#pragma once
#include "kernels/ptx/wgmma_steps.cuh"

namespace opfacade {

template <class T, int kColumns>
struct WgmmaRegisters : WgmmaOfRegisters<T, kColumns, true> {};

}  // namespace opfacade
