// out = code * scale * outer + the sum of all shards, one element per thread, in f64 with one rounding.
#pragma once
#include "kernels/common/stored.cuh"
#include "kernels/two_level/restore_params.h"

namespace opfacade {

template <int kGroup, int kShards>
__device__ __forceinline__ void restore(const RestoreParams& p) {
  const int64_t at = int64_t{blockIdx.x} * kRestoreThreads + threadIdx.x, row = at / p.width, column = at % p.width;
  if (row >= p.rows) return;
  const int both = p.codes[row * p.code_row + column / 2], code = (column % 2 == 0 ? both & 15 : both >> 4) - 8;
  const double scale = Stored<E4M3>::load(p.scales[row * p.scale_row + column / kGroup]);
  double total = code * scale * static_cast<double>(p.outer[row]);
  for (int k = 0; k < kShards; ++k) total += p.shards[k].data[row * p.shards[k].row + column * p.shards[k].column];
  p.out[row * p.out_row + column * p.out_column] = static_cast<float>(total);
}

}  // namespace opfacade
