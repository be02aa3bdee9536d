// Parameters of a fold of few long rows, each of which many CTAs share, for the kernels and their binding.
#pragma once
#include "kernels/reduction/fold_params.h"

namespace opfacade {

constexpr int kSpreadThreads = 64;  // of a CTA

template <int kOperands, int kScalars>
struct SpreadParams : FoldParams<kOperands, kScalars> {
  uint32_t* states;  // of all warps of a row, part after part, row after row, stage after stage
  int32_t parts;     // of a row
};

}  // namespace opfacade
