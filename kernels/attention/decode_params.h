// What a decode launch is told; shared by the kernels and their binding.
//
// head_blocks = kv_heads * ceil(group / 16); a block has up to kRows = min(group, 16) query heads of one kv head.
// Launch: grid max_items, block kWarps * 32, dynamic shared memory kWarps * kStages * 64 * head_dim bytes
//   (f32: 4 * ((2 * kStages * kTileKv + kRows) * (head_dim + 4) + kRows * (kTileKv + 4))).
// max_items: off    batch * head_blocks
//            auto   min(target_ctas, head_blocks * ceil(max_tokens / 128)) + batch * head_blocks
//            fixed  head_blocks * (floor(max_tokens / chunk) + batch)
//   where max_tokens = page_size * max_kv_indices bounds the sum of all lengths, target_ctas = SMs * blocks per SM.
// Workspace (auto and fixed): 4 * max_items * kRows * (head_dim + 1) + 8 * batch bytes: partial_o, partial_lse, plan.
// Merge launch (auto and fixed): grid (heads, batch), block 128.
#pragma once
#include "kernels/common/paged_kv.h"

namespace opfacade {

// Strides are in bytes. A pointer that a specialisation does not use is null.
struct DecodeParams {
  const void* q;
  int64_t q_row_stride;
  int64_t q_head_stride;
  PoolTensor k;
  PoolTensor v;
  PageTable table;
  void* o;
  int64_t o_row_stride;
  int64_t o_head_stride;
  float* lse;          // [batch, heads]
  float* partial_o;    // [max_items, kRows, head_dim], normalised
  float* partial_lse;  // [max_items, kRows], natural
  int32_t* plan;       // [batch, 2]: first unit and number of splits of each request
  ScoreScale score;
  int32_t batch;
  int32_t heads;
  int32_t kv_heads;
  int32_t window_left;
  int32_t target_ctas;
  int32_t max_items;
  int32_t chunk;
  bool q_aligned;      // 16-byte accesses are legal
  bool kv_aligned;
  bool o_aligned;
};

}  // namespace opfacade
