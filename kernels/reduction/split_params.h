// Parameters of a fold whose rows are cut into parts, shared by the kernels and their binding.
#pragma once
#include "kernels/reduction/fold_params.h"

namespace opfacade {

template <int kOperands, int kScalars>
struct SplitParams : FoldParams<kOperands, kScalars> {
  uint32_t* partial;  // states of all parts of a row, row after row, stage after stage
  int64_t chunk;      // elements of a part but the last
  int32_t parts;      // of a row
};

}  // namespace opfacade
