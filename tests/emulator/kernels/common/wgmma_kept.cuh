// Shadows kernels/common/wgmma_kept.cuh.
#pragma once
#include "kernels/common/wgmma_steps.cuh"

namespace opfacade {

template <class T, int kColumns>
struct WgmmaKept : WgmmaOfRegisters<T, kColumns, false> {};

}  // namespace opfacade
