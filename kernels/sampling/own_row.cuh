// The part of a row that a CTA processes, and where it writes the token.
#pragma once
#include "kernels/sampling/order.cuh"
#include "kernels/sampling/sample_params.h"

namespace opfacade {

// The rank of the CTA in its cluster. Cluster sizes are powers of two, so a mask replaces a division, which needs registers.
__device__ __forceinline__ uint32_t rank_of(const SampleParams& p) { return blockIdx.x & (static_cast<uint32_t>(p.ctas) - 1); }

// Invalid rows are neither read nor written; with a wrong count, no row is valid.
__device__ __forceinline__ bool is_valid_row(const SampleParams& p, int64_t row) {
  if (p.num_valid == nullptr) return true;
  const int64_t count = *p.num_valid;
  return count <= p.rows && row < count;
}

__device__ __forceinline__ void write_token(const SampleParams& p, int64_t row, uint64_t best) {
  p.token[row] = best == 0 ? -1 : static_cast<int32_t>(token_of(best));
  p.valid[row] = best != 0;
}

}  // namespace opfacade
