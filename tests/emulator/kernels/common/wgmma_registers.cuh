// Shadows kernels/common/wgmma_registers.cuh.
#pragma once
#include "kernels/common/wgmma_steps.cuh"

namespace opfacade {

template <class T, int kColumns>
struct WgmmaRegisters : WgmmaOfRegisters<T, kColumns, true> {};

}  // namespace opfacade
