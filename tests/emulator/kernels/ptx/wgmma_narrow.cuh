// Shadows kernels/ptx/wgmma_narrow.cuh, whose widths wgmma_layouts.cuh also supports.
#pragma once
#include "kernels/ptx/wgmma_layouts.cuh"
