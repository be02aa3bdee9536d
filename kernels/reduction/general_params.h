// Parameters of a fold of any program, shared by the kernel and its binding.
#pragma once
#include "kernels/reduction/fold_params.h"

namespace opfacade {

constexpr int kGeneralWarps = 8, kGeneralThreads = 32 * kGeneralWarps;

// Results of stages are in the workspace, 8 bytes each, in a separate part for each CTA. A stage has one result for each
// position along the folded axes that it does not join and along which its results differ.
template <int kOperands, int kScalars, int kStages>
struct GeneralParams : FoldParams<kOperands, kScalars> {
  static constexpr int kAtLeastOne = kStages == 0 ? 1 : kStages;
  uint64_t* results;
  int64_t words;                                 // of a CTA
  int64_t first[kAtLeastOne];                    // where a stage begins among them
  int64_t result_stride[kAtLeastOne][kMapAxes];  // in words; 0 where a result does not differ
  uint32_t joined[kAtLeastOne];                  // values that a result joins
  uint32_t apart[kAtLeastOne];                   // results of a part of a stage, in a row
};

}  // namespace opfacade
