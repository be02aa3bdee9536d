// Parameters of a routing, shared by the kernel and its binding. Launch: grid ceil(rows / kRouteRows), block 32 * kRouteRows;
// with groups, 4 bytes of shared memory for each row and expert of a CTA.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kRouteRows = 4;  // rows per CTA, one warp each

enum class Score { kSoftmax, kSoftmaxChosen, kSigmoid, kSqrtSoftplus };

struct RouteParams {
  const void* logits;           // [rows, experts]
  const float* bias;            // [experts], or null
  const float* correction;      // [experts], or null
  int32_t* ids;                 // [rows, top_k]; read if the caller selected the experts
  float* weights;               // [rows, top_k]
  const int32_t* replicas;      // [experts, most_replicas], or null
  const int32_t* num_replicas;  // [experts]
  int32_t* physical_ids;        // [rows, top_k]
  const int32_t* num_valid;     // null: all rows are valid
  int64_t rows, logits_row;     // stride in elements
  int32_t most_replicas;
  float scale;
};

}  // namespace opfacade
