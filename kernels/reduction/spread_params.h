// Parameters of a fold of few long rows, each split over many CTAs, for the kernels and their binding.
#pragma once
#include "kernels/reduction/fold_params.h"

namespace opfacade {

template <int kOperands, int kScalars>
struct SpreadParams : FoldParams<kOperands, kScalars> {
  uint32_t* states;  // states [stage][row][part][warp]
  int32_t parts;     // of a row
};

}  // namespace opfacade
