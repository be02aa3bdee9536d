// Parameters of a fold of any program, shared by the kernel and its binding.
#pragma once
#include "kernels/reduction/fold_params.h"

namespace opfacade {

constexpr int kPlaceStates = kMapAxes * 8 / kStateBytes;  // slots for coordinates, before the states of warps

// Results of stages are in the workspace, 8 bytes each, in a separate part for each CTA. A stage has one result for each
// position along the folded axes that it does not join and along which its results differ.
template <int kOperands, int kScalars, int kStages>
struct GeneralParams : FoldParams<kOperands, kScalars> {
  static constexpr int kAtLeastOne = kStages == 0 ? 1 : kStages;
  uint64_t* results;
  int64_t words;                                 // results of one CTA, in words of 8 bytes
  int64_t first[kAtLeastOne];                    // first word of a stage's results
  int64_t result_stride[kAtLeastOne][kMapAxes];  // in words; 0 along axes that do not change a result
  uint32_t joined[kAtLeastOne];                  // values that are joined into one result
  uint32_t apart[kAtLeastOne];                   // results per row, for each value that a reducer returns
};

}  // namespace opfacade
