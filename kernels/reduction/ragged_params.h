// Parameters of a fold of rows of different lengths, shared by the kernels and their binding.
#pragma once
#include "kernels/reduction/fold_params.h"

namespace opfacade {

constexpr int kRaggedWarps = 8, kRaggedThreads = 32 * kRaggedWarps;

template <int kOperands, int kScalars>
struct RaggedParams : FoldParams<kOperands, kScalars> {
  const void* indptr;
  int32_t unit;  // elements per entry of axis 1
  int32_t each;  // rows per CTA: a power of two, at most kRaggedThreads
  int64_t inner;  // rows per entry of axis 0
};

}  // namespace opfacade
