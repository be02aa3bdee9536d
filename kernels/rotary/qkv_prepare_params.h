// Parameters of qkv_prepare, shared by the kernel and its binding. The launch is that of a rotation: the heads of a row are
// those of q, k and v.
#pragma once
#include "kernels/kv_cache/append_params.h"
#include "kernels/rotary/rotary_params.h"

namespace opfacade {

// [rows, heads, head_dim]; strides are in bytes.
struct RotatedQueries {
  const void* from;
  void* to;
  int64_t from_row, from_head, to_row, to_head;
};

struct QkvPrepareParams {
  RotatedQueries q;
  AppendParams cache;    // new rows of k and v, pools and page table
  const int64_t* slots;  // [rows], instead of a page table
  const void* positions;
  int64_t position_step;
  AngleTable table;
  const void* q_weight;  // [head_dim]
  const void* k_weight;
  const float* k_scale;  // [1] or [kv_heads]
  const float* v_scale;
  float eps;
  int64_t rows;
  int32_t q_heads, kv_heads;
  int32_t heads_each, items;  // items: warps per row
  bool aligned;
  const int32_t* num_valid;
};

}  // namespace opfacade
