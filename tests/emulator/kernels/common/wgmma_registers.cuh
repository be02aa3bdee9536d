// Shadows kernels/common/wgmma_registers.cuh.
#pragma once
#include "kernels/common/wgmma_steps.cuh"

namespace opfacade {

template <class T, int kColumns>
using WgmmaRegisters = WgmmaOfRegisters<T, kColumns, true>;

}  // namespace opfacade
