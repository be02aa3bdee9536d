// Shared memory of a block of latent decode, and the barriers between its roles. Warpgroup 0 loads, 1 makes scores and weights
// of them, 2 and 3 add up the values of half the columns each.
//
// A stage is one tile of 32 tokens, in two pieces that two warps ask for: the latents and the rotated part of the key. Of the latents,
// eight tokens lie together with all eight panels of 64 columns, as they do in memory. The queries of an item
// come through the same stages, as two tiles of 32 heads in front of its own, and those that make scores keep them: in registers as
// far as there are any, and the other panels in shared memory.
//
// What threads write for other threads goes by barriers that every thread arrives at (`weighed`, `used`, `summed`, stages where threads
// load), which racecheck follows; what the copy engine and the tensor cores read and write, by one arrival a warp.
//
// Phases. Stages go round in one ring, queries and tiles alike, whatever the item. Everyone who computes waits for `full` of a use, or
// for `weighed` that comes behind it, and arrives once at `empty` of it: so no barrier can run ahead of a waiting thread, or
// hear of a use before the one it is in. Weights have two places: `weighed` of the next use needs `used` of this one, from all
// who add up values. Sums have a place for each item in the queue.
#pragma once
#include "kernels/attention/decode/output.cuh"
#include "kernels/mla/params.h"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/warpgroup.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/common/work_queue.cuh"

namespace opfacade {

constexpr int kMlaAdders = 2;  // warpgroups that hold o: all rows of half the latent each
constexpr int kMlaGroupWarps = 4;
constexpr int kMlaQueryTiles = kMlaRows / kMlaKeys;
constexpr int kMlaLatentPanels = kMlaLatent / 64;
constexpr int kMlaToPanel = 1024;                            // of latents, bytes from a panel to the next
constexpr int kMlaToGroup = kMlaLatentPanels * kMlaToPanel;  // and from eight tokens to the next; of the rotated part 1024
constexpr int kMlaToQueryPanel = kMlaKeys * 128;  // queries lie panel by panel, which is the same in all

enum Piece : int { kLatents, kRotated, kPieces };
// Named barriers.
enum : int { kMlaLoading = 1, kMlaWeighing = 2, kMlaMerging = 3 };

// Panels of a piece, and where it lies in its stage.
__device__ __forceinline__ constexpr int panels_of(int piece) { return piece == kRotated ? 1 : kMlaLatentPanels; }
__device__ __forceinline__ constexpr int piece_at(int piece) { return piece * kMlaKeys * kMlaLatent * 2; }
static_assert(piece_at(kRotated) == kMlaLatentPanels * kMlaToQueryPanel, "panels of queries follow each other to the last");

// One item; no tiles is one to be written empty, a negative request is the end.
struct MlaWork {
  WorkItem item;
  Parts parts;
  bool alone;  // the block makes all parts of its runs, and merges them
};

__device__ __forceinline__ int mla_tiles(const WorkItem& item) {
  return item.end <= item.begin ? 0 : (item.end - item.begin + kMlaKeys - 1) / kMlaKeys;
}

struct LatentBox {
  int group;  // of eight tokens, in its page
  int page;
};

struct MlaShared {
  alignas(1024) unsigned char kv[kMlaStages][kMlaTileBytes];
  alignas(1024) unsigned char q[kMlaPanels - kMlaKept][kMlaPanelBytes];
  alignas(1024) unsigned char weights[kMlaPanelBytes];  // of two tiles: 32 columns each
  uint64_t full[kMlaStages], empty[kMlaStages];
  uint64_t weighed[2], used[2];                         // weights of a tile are there, and it is swept; its values are added
  uint64_t summed[kQueue];                              // bases and sums of an item are there
  uint64_t work_full[kQueue], work_empty[kQueue];
  MlaWork work[kQueue];
  unsigned moved[2][kMlaGroupWarps];                    // the last tile for which bases of a warp's rows moved, by
  float factor[2][kMlaRows];
  float base[kQueue][kMlaRows], sum[kQueue][kMlaRows];
  LatentBox boxes[kPieces][kMlaKeys / 8];
  const char* rows[2][2][kMlaKeys];                     // [tile parity][ckv, kpe][token], when threads load

  __device__ __forceinline__ uint32_t piece(int stage, int piece) const { return smem_address(kv[stage]) + piece_at(piece); }
};
static_assert(sizeof(MlaShared) <= kMlaSharedBytes, "the launch asks for less");

using MlaQueue = WorkQueueIn<MlaShared, MlaWork>;
using MlaRing = Ring<kMlaStages>;

__device__ __forceinline__ void init_barriers(MlaShared& smem, bool mapped) {
  const int loaders = mapped ? kPieces : kWarpgroup;
  const int readers = (kMlaAdders + 1) * (mapped ? kMlaGroupWarps : kWarpgroup);
#pragma unroll 1
  for (int stage = 0; stage < kMlaStages; ++stage) {
    mbarrier_init(smem_address(&smem.full[stage]), loaders);
    mbarrier_init(smem_address(&smem.empty[stage]), readers);
  }
  for (int turn = 0; turn < 2; ++turn) {
    for (int warp = 0; warp < kMlaGroupWarps; ++warp) smem.moved[turn][warp] = 0;
    mbarrier_init(smem_address(&smem.weighed[turn]), kWarpgroup);
    mbarrier_init(smem_address(&smem.used[turn]), kMlaAdders * kWarpgroup);
  }
#pragma unroll 1
  for (int i = 0; i < kQueue; ++i) {
    mbarrier_init(smem_address(&smem.summed[i]), kWarpgroup);
    mbarrier_init(smem_address(&smem.work_full[i]), 1);
    mbarrier_init(smem_address(&smem.work_empty[i]), (kMlaAdders + 1) * kWarpgroup);
  }
  mbarrier_init_fence();
}

// A warp has seen a stage for the last time. One of its threads arrives for all, or each does where threads load: racecheck follows
// those alone, and sees what threads write.
__device__ __forceinline__ bool arrives_at_stages(bool mapped) { return !mapped || threadIdx.x % 32 == 0; }
__device__ __forceinline__ void let_go(MlaShared& smem, MlaRing& ring, bool arrives) {
  __syncwarp();
  if (arrives) mbarrier_arrive(smem_address(&smem.empty[ring.stage]));
  ring.advance();
}

}  // namespace opfacade
