// Parameters of a gather, shared by the kernel and its binding. Launch: grid (choices, any), block kGatherThreads: CTAs of a
// column share the 16-byte chunks of its row.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kGatherThreads = 128;

struct MoeGatherParams {
  const void* x;             // [choices / top_k, hidden]
  const int32_t* order;      // [choices]
  const float* weights;      // [choices]; null: all weights are 1
  void* out;                 // [choices, hidden]
  const int32_t* num_valid;  // number of valid entries of order; null: all
  int64_t choices, hidden, x_row, out_row;  // strides in elements
  int32_t top_k;
};

}  // namespace opfacade
