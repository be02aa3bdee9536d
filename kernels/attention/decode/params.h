// What a decode launch is told; shared by the kernels and their binding.
//
// head_blocks = kv_heads * ceil(group / 16); a block has up to kRows = min(group, 16) query heads of one kv head.
// Launch: one, block kWarps * 32, dynamic shared memory kSharedBytes; kernels check that it is what they lay out.
// Grid and slots: off    batch * head_blocks, no slots
//                 auto   up to twice `resident`, the blocks that run at once; two slots for each of those
//                 pieces batch * head_blocks and one and a half times `resident`; three slots for each of those
//                 cluster  kCluster * kTeams * batch * head_blocks, in clusters of kCluster; a slot for each where teams are several
//                 fixed  head_blocks * (floor(max_tokens / chunk) + batch), one slot a block, or less where the bound on one request says so
//   where max_tokens = page_size * max_kv_indices. Longer requests, or more of them, need no more: see decode/schedule/chunks.cuh.
// Workspace: 4 * slots * kRows * (head_dim + 1) + 8 * counters bytes: partial_o, counters, partial_lse. Any content will do.
// Counters: one a slot; of several teams one for each 128 columns of a run, ceil(kRows * head_dim / 128).
#pragma once
#include "kernels/paged/paged_kv.h"

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
  const float* k_scale;     // of an fp8 cache: [1] or [kv_heads], or null
  const float* v_scale;
  const float* sinks;       // [heads]: logits without a value
  float* partial_o;    // [slots, kRows, head_dim], normalised
  float* partial_lse;  // [slots, kRows], natural
  unsigned long long* counters;  // see decode/schedule/join.cuh and decode/schedule/teams.cuh
  unsigned long long stamp;      // a number that memory does not hold by chance, 48 bits
  ScoreScale score;
  int32_t batch;
  int32_t heads;
  int32_t kv_heads;
  int32_t window_left;
  int32_t resident;
  int32_t slots;
  int32_t chunk;
  int32_t kv_scale_stride;  // 0: one factor for all heads
  int32_t table_bytes;  // of the page table, to be fetched into the L2 early; 0: not worth it
  bool q_aligned;      // 16-byte accesses are legal
  bool kv_aligned;
  bool o_aligned;
};

}  // namespace opfacade
