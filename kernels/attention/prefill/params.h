// Parameters of a prefill launch, shared by the kernel and its binding.
//
// Launch: grid (total_rows * group / kTileRows + batch, kv_heads, splits), kWarps * 32 threads per CTA,
//   dynamic shared memory = (kTileRows + 2 * kTileKv) * head_dim * 2 + 4 * kTileKv * 8 + 1024 bytes, plus
//   8 * kTileKv bytes per key parameter of a variant, plus kTileKv * head_dim + kTileRows * 4 for an fp8 cache.
//   splits: off 1; auto num_splits (chosen by the host, >= 1); fixed num_splits = ceil(bound on kv length / chunk); the last
//   split has all remaining keys.
// Workspace (auto and fixed): 4 * splits * total_rows * heads * (head_dim + 1) bytes, partial_o first, then partial_lse.
// Pieces (prefill_sm90/params.h): grid num_splits CTAs, 2 * num_splits slots of slot_rows rows, no merge launch; workspace
//   8 * num_splits * slot_rows * (head_dim_vo + 1) bytes, then 8 bytes per counter, one counter per consumer warp of each CTA.
// Merge launch (auto and fixed): grid ceil(total_rows * heads / 4), 128 threads per CTA.
#pragma once
#include "kernels/paged/paged_kv.h"

namespace opfacade {

// Strides are in bytes. A pointer that the specialisation does not use is null.
struct PrefillParams {
  const void* q;
  int64_t q_row_stride;
  int64_t q_head_stride;
  const int32_t* q_indptr;
  PoolTensor k;
  PoolTensor v;
  PageTable table;
  void* o;
  int64_t o_row_stride;
  int64_t o_head_stride;
  const float* sinks;  // [heads]: logits of the sinks, which have no value
  const float* k_scale;  // fp8: null, [1] or [kv_heads]; factor of the stored values
  const float* v_scale;
  int32_t kv_scale_stride;  // 0 or 1
  float* lse;          // [total_rows, heads]
  float* partial_o;    // [splits, total_rows, heads, head_dim], normalised
  float* partial_lse;  // [splits, total_rows, heads], natural; -inf: partial_o is unwritten
  ScoreScale score;
  int32_t batch;
  int32_t total_rows;
  int32_t heads;
  int32_t window_left;
  int32_t num_splits;
  int32_t chunk;
  bool q_aligned;      // 16-byte accesses are legal
  bool kv_aligned;
  bool o_aligned;
  // Used only with pieces: partial_o is then [2 * num_splits, slot_rows, head_dim_vo], and all of it is written.
  int32_t slot_rows;             // maximum rows of a tile
  unsigned long long* counters;  // see prefill_sm90/join.cuh
  unsigned long long stamp;      // a 48-bit number that memory is unlikely to contain by chance
};

}  // namespace opfacade
