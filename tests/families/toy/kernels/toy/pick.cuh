// out = x + gain * table[index], one element per thread: a toy that shows operands, not speed. Addresses are 64-bit. A wrong
// index reads entry 0, and a wrong count leaves no row valid.
#pragma once
#include "kernels/ptx/dtype.cuh"
#include "kernels/toy/pick_params.h"

namespace opfacade {

template <class T>
__device__ __forceinline__ void pick(const PickParams& p) {
  using Bits = typename Element<T>::Bits;
  const int64_t at = int64_t{blockIdx.x} * kPickThreads + threadIdx.x, row = at / p.width, column = at % p.width;
  const int64_t counted = p.num_valid == nullptr ? p.rows : *p.num_valid;
  if (row >= p.rows || row >= counted || counted > p.rows) return;
  const int64_t given = p.index[row], entry = given >= 0 && given < p.entries ? given : 0;
  const float x = Element<T>::load(static_cast<const Bits*>(p.x)[row * p.x_row + column * p.x_column]);
  const float picked = Element<T>::load(static_cast<const Bits*>(p.table)[entry * p.table_row + column]);
  static_cast<Bits*>(p.out)[row * p.out_row + column * p.out_column] = Element<T>::store(x + *p.gain * picked);
}

}  // namespace opfacade
