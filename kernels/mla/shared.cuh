// Shared memory of a block of latent decode, and the barriers between its roles. Warpgroup 0 loads, 1 and 2 compute.
//
// A stage is one tile of 64 tokens, in three pieces that go on their own: columns 0-255 of the latent, 256-511, and the
// rotated part of the key. They come panel by panel of 64 columns, so that scores begin early; where pages are so small that
// this would be too many boxes, piece by piece, and eight tokens then lie together with all panels of the piece. The rotated
// part is not needed once a tile's scores are made, and is as large as the weights that those become, 64 x 64 16-bit
// numbers: they take its place. That is what leaves room for two stages beside the queries.
//
// What threads write for other threads goes by barriers that every thread arrives at (`weighed`, `summed`), which racecheck
// follows; what the copy engine and the tensor cores read and write, by one arrival a warp.
//
// Phases. A use of a stage completes each of its full and empty barriers and its `weighed` once, so one parity a stage
// serves all of them. None can run ahead of a waiting thread. `full` of the next use needs `empty` of this one, which the
// group arrives at that reads the piece as values: after its own wait for it, and after `weighed`, for which the group that
// makes the scores has waited for all three. `weighed` of the next use comes after `full` of the rotated part, which needs
// `empty` from both groups. Queries have one place: q_full of the next item needs q_empty of this one, from both groups.
#pragma once
#include "kernels/attention/decode_output.cuh"
#include "kernels/mla/params.h"
#include "kernels/common/tma.cuh"
#include "kernels/common/warpgroup.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/common/work_queue.cuh"

namespace opfacade {

constexpr int kMlaGroups = 2;      // computing warpgroups; each holds all rows of half the latent
constexpr int kMlaGroupWarps = 4;
constexpr int kMlaPanels = (kMlaLatent + kMlaRope) / 64;
constexpr int kMlaQueryPanel = kMlaRows * 128;

enum Piece : int { kLeft, kRight, kRotated, kPieces };
// Named barriers.
enum : int { kMlaLoading = 1, kMlaOwnGroup = 2 };

// Panels of a piece, the first of them, and where it lies in its stage.
__device__ __forceinline__ constexpr int panels_of(int piece) { return piece == kRotated ? 1 : 4; }
__device__ __forceinline__ constexpr int first_panel(int piece) { return piece * 4; }
__device__ __forceinline__ constexpr int piece_at(int piece) { return piece * kMlaKeys * 512; }

// One item; no tiles is one to be written empty, a negative request is the end.
struct MlaWork {
  WorkItem item;
  Parts parts;
};

__device__ __forceinline__ int mla_tiles(const WorkItem& item) {
  return item.end <= item.begin ? 0 : (item.end - item.begin + kMlaKeys - 1) / kMlaKeys;
}

struct LatentBox {
  int group;  // of eight tokens, in its page
  int page;
};

struct MlaShared {
  alignas(1024) unsigned char q[kMlaQueryBytes];  // panel by panel
  alignas(1024) unsigned char kv[kMlaStages][kMlaTileBytes];
  uint64_t q_full, q_empty;
  uint64_t full[kMlaStages][kMlaPanels];           // of what came in one box only the first panel's is used
  uint64_t empty[kMlaStages][kPieces];
  uint64_t weighed[kMlaStages];                    // weights and base of the stage's tile are there, and it is swept
  uint64_t summed[kMlaGroups];                     // the group's sums of an item are there
  uint64_t work_full[kQueue], work_empty[kQueue];
  MlaWork work[kQueue];
  float base[kMlaStages][kMlaRows];
  float sum[2][kMlaGroups][kMlaRows];              // by parity of the item
  LatentBox boxes[kPieces][kMlaKeys / 8];
  const char* rows[2][2][kMlaKeys];                // [tile parity][ckv, kpe][token], when threads load

  __device__ __forceinline__ uint32_t piece(int stage, int piece) const { return smem_address(kv[stage]) + piece_at(piece); }
};
static_assert(sizeof(MlaShared) <= kMlaSharedBytes, "the launch asks for less");

using MlaQueue = WorkQueueIn<MlaShared, MlaWork>;

__device__ __forceinline__ void init_barriers(MlaShared& smem, bool mapped) {
  const int loaders = mapped ? 1 : kWarpgroup;
  mbarrier_init(smem_address(&smem.q_full), mapped ? 1 : 2 * kWarpgroup);  // threads arrive for either part
  mbarrier_init(smem_address(&smem.q_empty), kMlaGroups * kMlaGroupWarps);
  for (int stage = 0; stage < kMlaStages; ++stage) {
#pragma unroll 1
    for (int panel = 0; panel < kMlaPanels; ++panel) mbarrier_init(smem_address(&smem.full[stage][panel]), loaders);
    for (int piece = 0; piece < kPieces; ++piece) {
      mbarrier_init(smem_address(&smem.empty[stage][piece]), piece == kRotated ? kMlaGroups * kMlaGroupWarps : kMlaGroupWarps);
    }
    mbarrier_init(smem_address(&smem.weighed[stage]), kWarpgroup);
  }
  for (uint64_t& summed : smem.summed) mbarrier_init(smem_address(&summed), kWarpgroup);
  for (int i = 0; i < kQueue; ++i) {
    mbarrier_init(smem_address(&smem.work_full[i]), 1);
    mbarrier_init(smem_address(&smem.work_empty[i]), kMlaGroups * kWarpgroup);
  }
  mbarrier_init_fence();
}

// The stages of an item's tiles, as loaders meet them: tile t of an item takes stage t % 2, whatever came before.
struct MlaStagesRing {
  uint32_t parities = 0;  // a bit for each stage

  __device__ __forceinline__ uint32_t parity(int stage) const { return parities >> stage & 1; }
  __device__ __forceinline__ void pass(int stage) { parities ^= 1u << stage; }
};

}  // namespace opfacade
