// Shared memory of latent decode, and the barriers between its roles. Warpgroup 0 loads, warpgroup 1 computes scores and
// weights, warpgroups 2 and 3 accumulate half the value columns each.
//
// A stage is one tile of 32 tokens in two parts, each loaded by its own warp: the latents, and the rope part of the key. Eight
// tokens of the latents are contiguous with all eight 64-column panels, as in global memory. The queries of an item pass
// through the same stages, as two tiles of 32 heads before its key tiles; the score group keeps them, part in registers, part
// in shared memory.
//
// Data written by threads is published with one arrival a thread (`weights_full`, `weights_empty`, `sums_full`, and stages
// filled by threads), which racecheck can follow; data accessed by TMA and tensor cores with one arrival a warp.
//
// Phases: all stages form one ring over queries and tiles of all items. Each consumer waits for `full` of a stage, or for the
// later `weights_full`, and arrives once at `empty`, so a barrier is never more than one phase ahead of a waiter. Weights have
// two buffers: `weights_full` of the next use needs `weights_empty` of this one from both value groups. Sums have one buffer a
// queue slot.
#pragma once
#include "kernels/attention/decode/output.cuh"
#include "kernels/mla/params.h"
#include "kernels/pipeline/work_queue.cuh"
#include "kernels/tile/panel.cuh"
#include "kernels/ptx/warpgroup.cuh"

namespace opfacade {

constexpr int kMlaValueGroups = 2;  // warpgroups that accumulate o, each for all rows and half of the latent columns
constexpr int kMlaGroupWarps = 4;
constexpr int kMlaQueryTiles = kMlaRows / kMlaKeys;
constexpr int kMlaLatentPanels = kMlaLatent / 64;
constexpr int kMlaToPanel = 1024;                            // latents: bytes between panels
// latents: bytes between groups of eight tokens; 1024 in the rope part
constexpr int kMlaToGroup = kMlaLatentPanels * kMlaToPanel;
constexpr int kMlaToQueryPanel = kMlaKeys * 128;  // bytes between query panels, in both parts

enum StagePart : int { kLatentPart, kRopePart, kStageParts };
// Named barriers.
enum : int { kMlaLoading = 1, kMlaScoring = 2, kMlaMerging = 3 };

// Panels of a stage part, and its offset in the stage.
__device__ __forceinline__ constexpr int panels_of(int part) { return part == kRopePart ? 1 : kMlaLatentPanels; }
__device__ __forceinline__ constexpr int part_offset(int part) { return part * kMlaKeys * kMlaLatent * 2; }
static_assert(part_offset(kRopePart) == kMlaLatentPanels * kMlaToQueryPanel, "panels of queries follow each other to the last");

// One work item. Without tiles, the result is empty; a negative request ends the work.
struct MlaWork {
  WorkItem item;
  Partials partials;
  int first_row_end;  // with several query rows: the end of the keys of the first row, negative if the row has none
  bool owns_units;  // this CTA computes and merges all partials of its requests
};

__device__ __forceinline__ int mla_tiles(const WorkItem& item) {
  return item.end <= item.begin ? 0 : (item.end - item.begin + kMlaKeys - 1) / kMlaKeys;
}

struct LatentBox {
  int group;  // group of eight tokens in its page
  int page;
};

struct MlaShared {
  alignas(1024) unsigned char kv[kMlaStages][kMlaTileBytes];
  alignas(1024) unsigned char q[kMlaPanels - kMlaKept][kMlaPanelBytes];
  alignas(1024) unsigned char weights[kMlaPanelBytes];  // two tiles of 32 columns each
  uint64_t full[kMlaStages], empty[kMlaStages];
  // the weights of a tile are stored and invisible tokens zeroed; its values are accumulated
  uint64_t weights_full[2], weights_empty[2];
  uint64_t sums_full[kQueue];                              // bases and sums of an item are stored
  uint64_t work_full[kQueue], work_empty[kQueue];
  MlaWork work[kQueue];
  unsigned rescaled_at[2][kMlaGroupWarps];                    // last tile at which a base of the warp's rows moved
  float factor[2][kMlaRows];
  float base[kQueue][kMlaRows], sum[kQueue][kMlaRows];
  uint32_t nonfinite[kMlaGroupWarps];  // per warp: the tokens of a tile in which the warp has found non-finite values
  LatentBox boxes[kStageParts][kMlaKeys / 8];
  const char* rows[2][2][kMlaKeys];                     // [tile parity][ckv, kpe][token], if threads copy

  __device__ __forceinline__ uint32_t part(int stage, int part) const { return smem_address(kv[stage]) + part_offset(part); }
};
static_assert(sizeof(MlaShared) <= kMlaSharedBytes, "the launch asks for less");

using MlaQueue = WorkQueueIn<MlaShared, MlaWork>;
using MlaRing = Ring<kMlaStages>;

__device__ __forceinline__ void init_barriers(MlaShared& smem, bool mapped) {
  const int loaders = mapped ? kStageParts : kWarpgroup;
  const int readers = (kMlaValueGroups + 1) * (mapped ? kMlaGroupWarps : kWarpgroup);
#pragma unroll 1
  for (int stage = 0; stage < kMlaStages; ++stage) {
    mbarrier_init(smem_address(&smem.full[stage]), loaders);
    mbarrier_init(smem_address(&smem.empty[stage]), readers);
  }
  for (int buffer = 0; buffer < 2; ++buffer) {
    for (int warp = 0; warp < kMlaGroupWarps; ++warp) smem.rescaled_at[buffer][warp] = 0;
    mbarrier_init(smem_address(&smem.weights_full[buffer]), kWarpgroup);
    mbarrier_init(smem_address(&smem.weights_empty[buffer]), kMlaValueGroups * kWarpgroup);
  }
#pragma unroll 1
  for (int i = 0; i < kQueue; ++i) {
    mbarrier_init(smem_address(&smem.sums_full[i]), kWarpgroup);
    mbarrier_init(smem_address(&smem.work_full[i]), 1);
    mbarrier_init(smem_address(&smem.work_empty[i]), (kMlaValueGroups + 1) * kWarpgroup);
  }
  mbarrier_init_fence();
}

// Releases a stage after its last read by this warp. One lane arrives, or every lane if threads copy, because racecheck follows
// only arrivals of all lanes.
__device__ __forceinline__ bool arrives_at_stages(bool mapped) { return !mapped || threadIdx.x % 32 == 0; }
__device__ __forceinline__ void release_stage(MlaShared& smem, MlaRing& ring, bool arrives) {
  __syncwarp();
  if (arrives) mbarrier_arrive(ring.at(smem.empty));
  ring.advance();
}

}  // namespace opfacade
