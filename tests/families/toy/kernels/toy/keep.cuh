// out = mask ? x : 0, one element per thread, as bits of any type: a toy that shows dtypes, not speed. Addresses are 64-bit.
#pragma once
#include "kernels/ptx/dtype.cuh"
#include "kernels/toy/keep_params.h"

namespace opfacade {

template <class Bits>
__device__ __forceinline__ void keep(const KeepParams& p) {
  const int64_t at = int64_t{blockIdx.x} * kKeepThreads + threadIdx.x, row = at / p.width, column = at % p.width;
  if (row >= p.rows) return;
  const Bits x = static_cast<const Bits*>(p.x)[row * p.x_row + column * p.x_column];
  static_cast<Bits*>(p.out)[row * p.out_row + column * p.out_column] = p.mask[row] != 0 ? x : Bits{0};
}

}  // namespace opfacade
