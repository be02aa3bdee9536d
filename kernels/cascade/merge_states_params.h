// What a merge of attention states is told; shared by the kernel and its binding.
// Launch: grid ceil(rows * heads / 4), block 128; a warp takes a row. Tensors are contiguous.
#pragma once
#include <stdint.h>

namespace opfacade {

struct MergeStatesParams {
  const void* states_o;     // [states, rows, heads, head_dim]
  const float* states_lse;  // [states, rows, heads]
  void* o;                  // [rows, heads, head_dim]
  float* lse;               // [rows, heads]
  int64_t rows;             // rows * heads
  int32_t states;
};

}  // namespace opfacade
