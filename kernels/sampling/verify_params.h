// Parameters of the verification of drafts, shared by the kernel and its binding. Launch with a race: grid batch * ctas in
// clusters of `ctas`, each of which has one request; kSampleThreads threads per CTA. Without a race: one thread per request.
// Strides in elements.
#pragma once
#include "kernels/sampling/sample_params.h"

namespace opfacade {

constexpr int kMostDrafts = 128, kVerifyShared = 4096;

struct VerifyParams {
  const int32_t* draft_tokens;   // [batch, drafts]
  const float* draft_probs;      // [batch, drafts, vocab]
  const float* target_probs;     // [batch, drafts + 1, vocab]
  const int32_t* target_tokens;  // [batch, drafts + 1], like the next two
  const int32_t* first_child;
  const int32_t* next_sibling;
  const int64_t* seed;  // [batch]
  const int64_t* offset;
  const int32_t* num_valid;  // [1]
  int32_t* tokens;           // [batch, drafts + 1]
  int32_t* accepted;         // [batch]
  int32_t* emitted;
  int32_t* nodes;  // [batch, drafts + 1]
  int64_t draft_request, draft_row, target_request, target_row;
  int64_t rows;  // requests
  int32_t drafts, vocab, ctas;
  uint32_t slice, stream;
  float threshold_single, threshold_acc;
};

}  // namespace opfacade
