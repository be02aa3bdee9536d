// Parameters of an append, shared by the kernel and its binding.
// Launch: grid (ceil(total_rows / 4), ceil(kv_heads / heads_each)), 128 threads a CTA; a warp takes some heads of a row of K
// and V.
#pragma once
#include "kernels/paged/paged_kv.h"

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
  int32_t kv_heads;
  int32_t heads_each;  // heads per warp
  bool aligned;        // 16-byte accesses are legal
};

struct ComputedAppendParams {
  AppendParams base;
  const float* k_scale;  // [1] or [kv_heads], or null
  const float* v_scale;
  const void* angles;    // [positions, rotary_dim]: cosines, then sines
  int64_t angle_stride;  // row stride in elements
  int32_t positions;
};

// Maximum number of heads of a row per warp: 64 bytes of K and of V per lane. Heads whose size is not a multiple of 16 bytes
// are copied element by element, so a warp takes fewer.
constexpr int heads_of_a_warp(int head_bytes) {
  const int most = (head_bytes % 16 == 0 ? 2048 : 512) / head_bytes;
  return most > 1 ? most : 1;
}

}  // namespace opfacade
