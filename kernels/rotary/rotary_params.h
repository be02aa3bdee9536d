// Parameters of a rotation, shared by the kernel and its binding. Launch: CTAs of up to 128 threads in a grid of (rows, CTAs
// per row); a warp takes heads_each heads of a row, first of q, then of k.
#pragma once
#include <stdint.h>

namespace opfacade {

// [rows, heads, head_dim]; strides are in bytes.
struct RotaryHeads {
  void* data;
  int64_t row, head;
};

// cosines, then sines, for each position
struct AngleTable {
  const void* data;
  int64_t stride;  // in elements
  int64_t positions;
};

// All fields that a rotation in place needs come first: each further 64 bytes of a newly started kernel's parameters are
// fetched from memory.
struct RotaryParams {
  const void* positions;  // [sections, rows], i32 or i64
  int64_t position_step;  // elements between sections
  AngleTable table;
  int64_t rows;
  int32_t q_heads, heads;  // heads: of q and k together
  int32_t heads_each;
  int32_t aligned;   // 1: 16-byte accesses are legal
  RotaryHeads q, k;
  RotaryHeads q_out, k_out;
  const int32_t* num_valid;
};

}  // namespace opfacade
