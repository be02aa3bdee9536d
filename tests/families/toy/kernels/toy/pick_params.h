// Parameters of pick, shared by the kernel and its binding. Launch: grid ceil(rows * width / 128), block 128.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kPickThreads = 128;

struct PickParams {
  const void* x;             // [rows, width], any strides
  const void* table;  // [entries, width]; the stride of entries may be 0
  const int32_t* index;      // [rows]
  const float* gain;         // a scalar
  void* out;                 // like x; equal to x in place
  const int32_t* num_valid;  // null if all rows are valid
  int64_t rows, width, entries;
  int64_t x_row, x_column, out_row, out_column, table_row;  // strides in elements
};

}  // namespace opfacade
