// What a launch of latent decode is told; shared by the kernels and their binding.
//
// Launch: grid units * head blocks, those of a unit side by side, block kMlaThreads, dynamic shared memory
// kMlaSharedBytes. A head block is 64 query heads. Units are as the blocks of a decode for one head block (decode/params.h):
// off batch; auto at most SMs / head blocks, two slots each; fixed floor(max_tokens / chunk) + batch or less, one slot each. Slots of head
// block h start at h * base.slots.
// Workspace, of a split: head blocks * slots * kRows * (latent + 1) floats, then one SplitRun a unit. Any content will do.
// Second launch, of a split: grid of about kMlaMergeBlocks by slices of kMlaMergeSlice units, block
// kMlaMergeThreads, dynamic shared memory kMlaMergeSharedBytes.
#pragma once
#include "kernels/attention/decode/params.h"
#include "kernels/ptx/tensor_map.h"

namespace opfacade {

constexpr int kMlaLatent = 512;
constexpr int kMlaRope = 64;
constexpr int kMlaRows = 64;    // query heads of a block
constexpr int kMlaKeys = 32;    // tokens of a tile
constexpr int kMlaStages = 5;
constexpr int kMlaThreads = 512;
constexpr int kMlaTileBytes = kMlaKeys * (kMlaLatent + kMlaRope) * 2;
constexpr int kMlaPanelBytes = kMlaRows * 128;  // 64 columns of all heads
constexpr int kMlaPanels = (kMlaLatent + kMlaRope) / 64;
constexpr int kMlaKept = 5;                     // panels of queries in registers; the others have a place in shared memory
constexpr int kMlaControlBytes = 6144;          // barriers, work, what the computing warpgroups tell each other, addresses
constexpr int kMlaSharedBytes = kMlaStages * kMlaTileBytes + (kMlaPanels - kMlaKept + 1) * kMlaPanelBytes + kMlaControlBytes;
constexpr int kMlaMergeSlice = 256;
constexpr int kMlaMergeBlocks = 528;
constexpr int kMlaMergeThreads = 256;
// Parts of a row that are read at once: more hide more latency, but each costs instructions where it is not there.
constexpr int kMlaMergedParts = 8;

// The run that starts in a unit and goes on in others, if count > 1.
struct SplitRun {
  int32_t request;
  int32_t count;
  int32_t first_slot;  // the rest as in Parts, of head block 0
  int32_t next_slot;
  int32_t step;
};

constexpr int kMlaMergeSharedBytes = kMlaMergeSlice * sizeof(SplitRun) + kMlaMergeSlice / 8;

struct MlaParams {
  // Dimensions from the innermost. Queries: columns, head, request; a box is 64 columns of kMlaKeys heads. Pools: 64 columns, 8
  // tokens, panel of 64 columns, 8-token groups of a page, page; a box is `box` tokens of one page with all their panels.
  TensorMap q_map;
  TensorMap q_pe_map;
  TensorMap ckv_map;
  TensorMap kpe_map;
  DecodeParams base;   // q is q_nope, k is ckv, v is kpe; no counters
  const void* q_pe;
  int64_t q_pe_row_stride;
  int64_t q_pe_head_stride;
  SplitRun* runs;      // [units]
  int32_t units;
  int32_t box;
  bool q_pe_aligned;
  bool mapped;         // the copy engine loads; else the maps are unset and threads load
};

}  // namespace opfacade
