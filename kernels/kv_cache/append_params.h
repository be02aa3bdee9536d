// What an append to the pool is told; shared by the kernel and its binding.
// Launch: grid (ceil(total_rows / 4), kv_heads), block 128; a warp takes a row of one head, K and V.
#pragma once
#include "kernels/common/paged_kv.h"

namespace opfacade {

// Strides are in bytes.
struct NewRows {
  const void* data;  // [rows, kv_heads, head_dim]
  int64_t row_stride;
  int64_t head_stride;
};

struct AppendParams {
  NewRows k_new;
  NewRows v_new;
  PoolTensor k;
  PoolTensor v;
  PageTable table;
  const int32_t* append_indptr;  // [batch + 1]
  int32_t batch;
  int32_t total_rows;
  bool k_aligned;  // 16-byte accesses are legal
  bool v_aligned;
};

struct ComputedAppendParams {
  AppendParams base;
  const float* k_scale;  // [1] or [kv_heads], or null
  const float* v_scale;
  const float* angles;   // [positions, rotary_dim]: cosines, then sines
  int64_t angle_stride;  // in elements
  int32_t positions;
  int32_t scale_stride;  // 0: one factor for all heads
};

}  // namespace opfacade
