// Parameters of a merge of attention states over ranks, shared by the kernel and its binding. Tensors are contiguous.
// Launch: at most kMostCtas CTAs of kMergeAcrossThreads threads.
#pragma once
#include "kernels/ranks/round_params.h"

namespace opfacade {

constexpr int kMergeAcrossThreads = 288;  // four units of 64 chunks, and their log-sum-exps

struct MergeAcrossParams {
  RoundParams round;
  const uint8_t* o_part;   // [states, all_rows, heads, head_dim], from the first row of this launch on
  const float* lse_part;   // [states, all_rows, heads], from the first row of this launch on
  uint8_t* o;              // [rows, kept, head_dim]
  float* lse;              // [rows, kept]
  const float* sinks;      // [heads], only for kernels with sinks
  int64_t rows, all_rows;  // rows of this launch; rows between states
  int32_t states, heads, kept;  // states per rank; heads of all ranks; heads that a rank keeps: all, or its own
  int32_t flagged;         // whether states travel in flagged lines
};

}  // namespace opfacade
