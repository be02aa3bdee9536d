// Parameters of restore, shared by the kernel and its binding. Launch: grid ceil(rows * width / 128), block 128.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kRestoreThreads = 128, kMaxShards = 3;

struct Shard {
  const float* data;  // [rows, width], perhaps in the memory of another device
  int64_t row, column;  // strides in elements
};

struct RestoreParams {
  const uint8_t* codes;   // [rows, width / 2]
  const uint8_t* scales;  // [rows, width / group], e4m3
  const float* outer;     // [rows]
  Shard shards[kMaxShards];
  float* out;             // [rows, width]
  int64_t rows, width, code_row, scale_row, out_row, out_column;
};

}  // namespace opfacade
