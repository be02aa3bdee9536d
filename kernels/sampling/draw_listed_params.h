// Parameters of a draw from lists of ranks, shared by the kernel and its binding. Launch: a CTA of kSampleThreads threads per row.
#pragma once
#include "kernels/sampling/sample_params.h"

namespace opfacade {

constexpr int kMostLists = kMostCtas;  // one list per rank

struct DrawListedParams {
  SampleParams sample;  // fields for the whole vocabulary; its logits are not used
  // One list per rank: for each row, `listed` adjusted logits, the largest first; after the logits of all rows, their columns
  // in the rank's shard, as i32. The logit of an unused entry is -inf.
  const float* lists[kMostLists];
  int32_t world, listed, shard;  // the columns of rank r begin at r * shard
};

}  // namespace opfacade
