// Parameters of a decode launch, shared by the kernels and their bindings.
//
// head_blocks = kv_heads * ceil(group / 16). A CTA computes up to kRows = min(group, 16) query heads of one kv head.
// Launch: CTAs of kWarps * 32 threads with kSharedBytes of dynamic shared memory; the kernels check the size against their
// layout. Grid and workspace slots by split mode:
//   off      batch * head_blocks CTAs, no slots
//   auto     at most 2 * `resident` CTAs (`resident`: CTAs that run concurrently), two slots per CTA
//   pieces   batch * head_blocks + 1.5 * `resident` CTAs, three slots for each resident CTA
//   cluster  kClusterSize * kClustersPerUnit * batch * head_blocks CTAs in clusters of kClusterSize; one slot each if kClustersPerUnit > 1
//   fixed    head_blocks * (floor(max_tokens / chunk) + batch) CTAs, fewer if one request is bounded; one slot per CTA
//            max_tokens = page_size * max_kv_indices; decode/schedule/chunks.cuh handles batches that exceed it
// Workspace: 4 * slots * kRows * (head_dim + 1) + 8 * counters bytes: partial_o, counters, partial_lse. It is never
// initialised. Counters: one per slot; with kClustersPerUnit > 1, ceil(kRows * head_dim / 128) per work unit, one for each 128
// columns.
#pragma once
#include "kernels/paged/paged_kv.h"

namespace opfacade {

// Strides are in bytes. A pointer that the specialisation does not use is null.
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
  const float* k_scale;     // fp8 cache only: [1] or [kv_heads], or null
  const float* v_scale;
  const float* sinks;       // [heads]: logits of the sinks, which have no value
  float* partial_o;    // [slots, kRows, head_dim], normalised
  float* partial_lse;  // [slots, kRows], natural
  unsigned long long* counters;  // see decode/schedule/count.cuh
  unsigned long long stamp;      // 48 random bits that mark a counter as initialised
  ScoreScale score;
  int32_t batch;
  int32_t heads;
  int32_t kv_heads;
  int32_t window_left;
  int32_t resident;
  int32_t slots;
  int32_t chunk;
  int32_t kv_scale_stride;  // 0 if all heads share one factor
  int32_t table_bytes;  // leading bytes of the page table that are prefetched into L2; 0 for none
  bool q_aligned;      // q allows 16-byte accesses
  bool kv_aligned;
  bool o_aligned;
};

}  // namespace opfacade
