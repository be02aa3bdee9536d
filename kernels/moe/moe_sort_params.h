// Parameters of a sort of choices by experts, shared by the kernel and its binding. Launch: one CTA of 32 * sort_warps
// threads and sort_bytes of shared memory.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kSortCounters = 8192;  // counters of all warps in shared memory, 32 KB

// The number of warps: at most 32, and at most as many as have a counter for each expert in shared memory.
constexpr int sort_warps(int experts) {
  int warps = 32;
  while (warps > 1 && warps * experts > kSortCounters) warps /= 2;
  return warps;
}

// The bytes of the counters of the warps and of one sum per expert.
constexpr int sort_bytes(int experts) { return 4 * (sort_warps(experts) + 1) * experts; }

struct MoeSortParams {
  const int32_t* ids;  // [rows, top_k]
  int32_t* indptr;     // [experts + 1]
  int32_t* order;      // [rows * top_k]
  int32_t* x_rows;     // [rows * top_k]
  int32_t* places;      // [rows, top_k]
  int64_t choices;     // rows * top_k
  int32_t top_k, first_expert;
};

}  // namespace opfacade
