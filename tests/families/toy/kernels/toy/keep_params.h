// Parameters of keep, shared by the kernel and its binding. Launch: grid ceil(rows * width / 128), block 128.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kKeepThreads = 128;

struct KeepParams {
  const void* x;        // [rows, width], any strides
  const uint8_t* mask;  // [rows]
  void* out;  // same shape as x
  int64_t rows, width;
  int64_t x_row, x_column, out_row, out_column;  // strides in elements
};

}  // namespace opfacade
