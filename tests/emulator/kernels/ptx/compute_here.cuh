// Shadows kernels/ptx/compute_here.cuh.
#pragma once
#include <stdint.h>

namespace opfacade {

inline void compute_here(const uint32_t (&)[4], int, uint32_t) {}

}  // namespace opfacade
