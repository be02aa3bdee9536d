// Parameters of a fold whose rows are cut into parts, shared by the kernels and their binding.
#pragma once
#include "kernels/reduction/fold_params.h"

namespace opfacade {

template <int kOperands, int kScalars>
struct SplitParams : FoldParams<kOperands, kScalars> {
  uint32_t* partial;  // states [stage][row][part]
  int64_t chunk;      // elements per part; the last part may have fewer
  int32_t parts;      // of a row
};

}  // namespace opfacade
