// Parameters of a combination, shared by the kernel and its binding. Launch: grid (rows, any), block kCombineThreads: CTAs of a
// column share the 16-byte chunks of its row.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kCombineThreads = 128;

struct MoeCombineParams {
  const void* y;         // [rows * top_k, hidden]
  const int32_t* places;  // [rows, top_k]; a slot whose place is not a row of y is skipped
  const float* weights;  // [rows, top_k]; null: all weights are 1
  const void* add;       // [rows, hidden], or null
  void* out;             // [rows, hidden]
  int64_t rows, hidden, y_row, add_row, out_row;  // strides in elements
  float scale;
};

}  // namespace opfacade
