// Parameters of a latent decode launch, shared by the kernels and their binding.
//
// Launch: units * head blocks CTAs of kMlaThreads threads, kMlaSharedBytes of dynamic shared memory. A head block is 64 query
// heads; query rows of a request follow each other, each with all its heads (base.heads counts all of them). A unit is the
// adjacent CTAs, one per head block, that process the same items. Units and slots by split mode:
//   off    batch units
//   auto   at most SMs / head blocks units, two slots each
//   fixed  floor(max_tokens / chunk) + batch units or fewer, one slot each
// Slots of head block h start at h * base.slots.
// Workspace, if split: head blocks * slots * kRows * (latent + 1) floats, then one SplitRequest a unit. It is never
// initialised. Second launch, if split: about kMlaMergeBlocks CTAs by slices of kMlaMergeSlice units, kMlaMergeThreads threads,
// kMlaMergeSharedBytes of dynamic shared memory.
#pragma once
#include "kernels/attention/decode/params.h"
#include "kernels/ptx/tensor_map.h"

namespace opfacade {

constexpr int kMlaLatent = 512;
constexpr int kMlaRope = 64;
constexpr int kMlaRows = 64;    // query heads per CTA, counted over several query rows if a request has them
constexpr int kMlaKeys = 32;    // tokens of a tile
constexpr int kMlaStages = 5;
constexpr int kMlaThreads = 512;
constexpr int kMlaTileBytes = kMlaKeys * (kMlaLatent + kMlaRope) * 2;
constexpr int kMlaPanelBytes = kMlaRows * 128;  // 64 columns of all heads, in bytes
constexpr int kMlaPanels = (kMlaLatent + kMlaRope) / 64;
constexpr int kMlaKept = 5;                     // query panels in registers; the others are in shared memory
constexpr int kMlaControlBytes = 6144;          // barriers, work queue, softmax state exchanged between warpgroups, addresses
constexpr int kMlaSharedBytes = kMlaStages * kMlaTileBytes + (kMlaPanels - kMlaKept + 1) * kMlaPanelBytes + kMlaControlBytes;
constexpr int kMlaMergeSlice = 256;
constexpr int kMlaMergeBlocks = 528;
constexpr int kMlaMergeThreads = 256;
// The number of partials of a row that are loaded at once: more of them hide more latency, but cost instructions if a row has
// fewer.
constexpr int kMlaMergedPartials = 8;

// The TMA box of queries: adjacent heads of adjacent query rows, which fill a tile of kMlaKeys heads alone or with other boxes
// of the same shape. A box has at least eight heads, the period of the swizzle. If it has none, threads copy.
struct QueryBox {
  int32_t heads;
  int32_t rows;
};
constexpr QueryBox query_box(int heads, int query_rows) {
  if (query_rows == 1) return {kMlaKeys, 1};
  if (kMlaKeys % heads == 0) return {heads, kMlaKeys / heads};
  return {heads % 32 == 0 ? 32 : heads % 16 == 0 ? 16 : heads % 8 == 0 ? 8 : 0, 1};
}

// The split request whose first item belongs to a unit; count > 1 if it continues in other units.
struct SplitRequest {
  int32_t request;
  int32_t count;
  int32_t first_slot;  // the rest as in Partials, for head block 0
  int32_t next_slot;
  int32_t step;
};

constexpr int kMlaMergeSharedBytes = kMlaMergeSlice * sizeof(SplitRequest) + kMlaMergeSlice / 8;

struct MlaParams {
  // Dimensions are innermost first. Queries: columns, head, query row; a box is 64 columns of a QueryBox.
  // Pools: 64 columns, 8 tokens, 64-column panel, 8-token group of a page, page; a box is `box` tokens of one page, all panels.
  TensorMap q_map;
  TensorMap q_pe_map;
  TensorMap ckv_map;
  TensorMap kpe_map;
  DecodeParams base;   // q is q_nope, k is ckv, v is kpe; no counters
  const void* q_pe;
  int64_t q_pe_row_stride;
  int64_t q_pe_head_stride;
  SplitRequest* split_requests;      // [units]
  int32_t units;
  int32_t box;
  bool q_pe_aligned;
  bool mapped;         // TMA loads; otherwise the maps are unset and threads copy
};

}  // namespace opfacade
