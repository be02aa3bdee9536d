// Parameters of a draw from lists of ranks, shared by the kernel and its binding. Launch: a CTA of kSampleThreads threads per row.
#pragma once
#include "kernels/sampling/sample_params.h"

namespace opfacade {

constexpr int kMostLists = kMostCtas;  // a list of each rank

struct DrawListedParams {
  SampleParams sample;  // of the whole vocabulary; the logits are not there
  // For each rank and row: `listed` adjusted logits, the largest first; behind those of all rows, columns of that rank, as i32. An
  // entry without a token has -inf.
  const float* lists[kMostLists];
  int32_t world, listed, shard;  // columns of rank r begin at r * shard
};

}  // namespace opfacade
