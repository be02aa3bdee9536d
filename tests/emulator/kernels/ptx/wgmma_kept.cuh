// Shadows kernels/ptx/wgmma_kept.cuh.
#pragma once
#include "kernels/ptx/wgmma_steps.cuh"

namespace opfacade {

template <class T, int kColumns>
struct WgmmaKept : WgmmaOfRegisters<T, kColumns, false> {};

}  // namespace opfacade
