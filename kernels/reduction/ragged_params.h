// Parameters of a fold of rows of different lengths, shared by the kernels and their binding.
#pragma once
#include "kernels/reduction/fold_params.h"

namespace opfacade {

struct RowRange {
  int64_t begin, length;
};
// Shared memory of a CTA: the states of warps, a mask of long rows per warp, and the ranges of long rows, if it keeps them.
constexpr int64_t ragged_bytes(int slots, int warps, int ranges) {
  return slots * kStateBytes + warps * int64_t{sizeof(uint32_t)} + ranges * int64_t{sizeof(RowRange)};
}

template <int kOperands, int kScalars>
struct RaggedParams : FoldParams<kOperands, kScalars> {
  const void* indptr;
  int32_t unit;  // elements per entry of axis 1
  int32_t each;  // rows per CTA: a power of two, at most one per thread
  int64_t inner;  // rows per entry of axis 0
};

}  // namespace opfacade
