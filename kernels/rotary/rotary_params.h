// Parameters of a rotation, shared by the kernel and its binding.
// Launch: CTAs of 128 threads; a warp takes heads_each of the heads of a row, those of q first, then those of k.
#pragma once
#include <stdint.h>

namespace opfacade {

// [rows, heads, head_dim]; strides are in bytes.
struct RotaryTensor {
  const void* from;
  void* to;
  int64_t from_row, from_head, to_row, to_head;
};

// cosines, then sines, for each position
struct AngleTable {
  const void* data;
  int64_t stride;  // in elements
  int64_t positions;
};

struct RotaryParams {
  RotaryTensor q, k;
  const void* positions;  // [sections, rows], i32 or i64
  AngleTable table;
  const int32_t* num_valid;  // null: all rows are valid
  int64_t rows;
  int32_t q_heads, heads;  // heads: of q and k
  int32_t heads_each, items;  // items: warps of a row
  bool aligned;               // 16-byte accesses are legal
};

}  // namespace opfacade
