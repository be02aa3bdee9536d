// Shared memory of a prefill block on sm_90a, and the barriers between its roles. Warpgroup 0 loads; the others
// compute 64 rows each. K and V of one tile of keys share a stage number.
//
// Q and ragged K and V lie panel by panel; of paged K and V eight tokens lie together with all their panels, so that one box
// is one page.
#pragma once
#include "kernels/attention/prefill_sm90/scheduler.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma_registers.cuh"
#include "kernels/common/work_queue.cuh"

namespace opfacade {

template <class C>
constexpr int kConsumers = C::Tile::kComputing;  // warpgroups
template <class C>
constexpr int kComputers = kConsumers<C> * kWarpgroup;  // threads
template <class C>
constexpr int kConsumerWarps = kConsumers<C> * 4;  // one arrival each
template <class C>
constexpr int kReaders = (kConsumerWarps<C> + 3) * 32;  // threads that look at work

// Named barriers. From kTurn on, for each computing warpgroup: that it is its turn to issue products. kOwnGroup: its own.
enum : int { kTurn = 1, kComputing = 4, kLoading = 5, kOwnGroup = 6 };
constexpr int kTurnThreads = 2 * kWarpgroup;  // who waits for a turn and who hands it on

struct PageBox {
  int group;  // of eight tokens, in its page
  int place;  // of its page and head
};

// An fp8 cache on its way, and what the scores of each row are to be multiplied with.
template <int kSlots, int kSlotBytes, int kRawRows, int kRows>
struct RawShared {
  alignas(128) unsigned char slots[kSlots][kSlotBytes];
  const char* rows[kSlots][kRawRows];  // where they lie, when threads load
  uint64_t full[kSlots], empty[kSlots];
  float factor[kRows];
};
template <int kSlotBytes, int kRawRows, int kRows>
struct RawShared<0, kSlotBytes, kRawRows, kRows> {};

// V of fp8 products as it comes, before it is transposed; and what a thread has no registers for between two works: bases and sums of
// its rows.
template <int kStages, int kBytes, bool kTransposes>
struct ComingShared {};
template <int kStages, int kBytes>
struct ComingShared<kStages, kBytes, true> {
  alignas(1024) unsigned char v[kStages][kBytes];
  uint64_t full[kStages], empty[kStages];
  float4 ended[2 * kWarpgroup];
};
template <class Tile, bool kTransposes>
struct ComingOf {
  using Shared = ComingShared<0, 0, false>;
};
template <class Tile>
struct ComingOf<Tile, true> {
  using Shared = ComingShared<Tile::kComingStages, Tile::kTileBytes, true>;
};

// Products are of fp8, so V is transposed; K and V lie in memory as products read them.
template <class C>
constexpr bool kFp8Products = C::Tile::kElementBytes == 1;
template <class C>
constexpr bool kAsStored = C::Tile::kElementBytes == C::kKvBytes;

// The last warps of warpgroup 0 make tiles ready: they sweep what the copy engine brings, transpose it, or widen it.
template <class C>
constexpr int kSweepers = kAsStored<C> ? 2 : 3;

// Where threads copy: so many find where rows of K lie, and copy them, as many do so for V, and all of them copy Q. Of an fp8 cache one
// warp finds rows of both; those that widen copy, Q too.
template <class C>
constexpr int kCopiers = kAsStored<C> ? kWarpgroup / 2 : 32;
template <class C>
constexpr int kQueryCopiers = kAsStored<C> ? kWarpgroup : kSweepers<C> * 32;

// Whether values that are not finite may have to be hidden from a row.
template <class C>
constexpr bool kReportsWild = C::kCausal || C::kWindow || kHidesMore<C>;

// Where lengths cut tiles.
template <bool kCuts>
struct Pieces {
  CutLine line;
  Work parts[2];  // that this block has made: one that goes on with a tile, one that begins one
};
template <>
struct Pieces<false> {
  CutLine line;
};

template <class C>
struct WgmmaShared {
  using Tile = typename C::Tile;
  static constexpr int kPanels = C::kHeadDim * Tile::kElementBytes / 128;  // of Q and K
  static constexpr int kQPanel = Tile::kRows * 128;
  static constexpr bool kPaged = C::kTable != TableForm::kRagged;
  static constexpr int kKvPanel = kPaged ? 1024 : C::kTileKv * 128;  // from panel to panel
  static constexpr int kKvGroup = kPaged ? kPanels * 1024 : 1024;    // from eight tokens to the next
  static constexpr int kQStages = Tile::kQStages;
  static_assert(!kPaged || C::kHeadDimVo == C::kHeadDim, "K and V have one step from eight tokens to the next");

  alignas(1024) unsigned char q[kQStages][kPanels * kQPanel];
  alignas(1024) unsigned char k[C::kStages][Tile::kKBytes];
  alignas(1024) unsigned char v[C::kStages][Tile::kVBytes];
  uint64_t q_full[kQStages], q_empty[kQStages];
  uint64_t work_full[kQueue], work_empty[kQueue];
  uint64_t k_full[C::kStages], k_empty[C::kStages];
  uint64_t v_full[C::kStages], v_empty[C::kStages];
  uint64_t swept[C::kStages];                  // masked tiles only: V is clean, `wild` is set
  alignas(16) uint32_t wild[C::kStages][4];    // by warp of warpgroup 0: values that are not finite were seen
  uint64_t judged[C::kStages];                 // masked tiles only: `wild` is read, by every thread that computes
  uint64_t nobody;                             // waits for this one
  Work work[kQueue];
  Lengths lengths[kMaxRanked];
  Progress progress;                           // of the warp that finds work
  alignas(16) PageBox boxes[2][32];            // [K, V]
  // [K, V][token % 8][token / 8], when threads load what is not widened. Two more let a warp's reads lie in all banks.
  static constexpr bool kFindsRows = kAsStored<C> && !kFp8Products<C>;
  alignas(16) uint64_t rows[2][kFindsRows ? 8 : 1][kFindsRows ? C::kTileKv / 8 + 2 : 2];
  RawShared<Tile::kRawSlots, Tile::kRawBytes, Tile::kRawRows, Tile::kRows> raw;
  typename ComingOf<Tile, kFp8Products<C>>::Shared coming;
  Pieces<kCutsByLengths<C>> pieces;
};

template <class C>
__device__ __forceinline__ void init_barriers(WgmmaShared<C>& smem, bool mapped) {
  const bool sweeps = kAsStored<C> && !kFp8Products<C> && mapped;
  const int loaders = !kAsStored<C> ? kSweepers<C> * 32 : mapped ? 1 : kCopiers<C>;
  for (int i = 0; i < WgmmaShared<C>::kQStages; ++i) {
    mbarrier_init(smem_address(&smem.q_full[i]), mapped ? 1 : kQueryCopiers<C>);
    mbarrier_init(smem_address(&smem.q_empty[i]), kConsumerWarps<C>);
  }
  mbarrier_init(smem_address(&smem.nobody), kConsumerWarps<C> + 1);  // never over, or synccheck would miss a wait
  for (int i = 0; i < kQueue; ++i) {
    mbarrier_init(smem_address(&smem.work_full[i]), 1);
    mbarrier_init(smem_address(&smem.work_empty[i]), kReaders<C>);
  }
  for (int i = 0; i < C::kStages; ++i) {
    mbarrier_init(smem_address(&smem.k_full[i]), loaders);
    mbarrier_init(smem_address(&smem.v_full[i]), kFp8Products<C> ? kSweepers<C> : loaders);
    mbarrier_init(smem_address(&smem.k_empty[i]), kConsumerWarps<C>);
    mbarrier_init(smem_address(&smem.v_empty[i]), kConsumerWarps<C> + (sweeps ? kSweepers<C> : 0));
    mbarrier_init(smem_address(&smem.swept[i]), kSweepers<C>);
    mbarrier_init(smem_address(&smem.judged[i]), kComputers<C>);
    for (int warp = 0; warp < 4; ++warp) smem.wild[i][warp] = 0;
  }
  if constexpr (kFp8Products<C>) {
    for (int i = 0; i < C::Tile::kComingStages; ++i) {
      mbarrier_init(smem_address(&smem.coming.full[i]), 1);
      mbarrier_init(smem_address(&smem.coming.empty[i]), kSweepers<C>);
    }
  }
  if constexpr (!kAsStored<C>) {
    for (int i = 0; i < C::Tile::kRawSlots; ++i) {
      mbarrier_init(smem_address(&smem.raw.full[i]), mapped ? 1 : kCopiers<C>);
      mbarrier_init(smem_address(&smem.raw.empty[i]), kSweepers<C> * 32);
    }
  }
  if constexpr (kCutsByLengths<C>)
    for (Work& part : smem.pieces.parts) part.tile.rows = 0;
  mbarrier_init_fence();
}

// What the warps that look at V say of masked tiles, and how those that compute read it. v_empty, of one arrival a warp, would do,
// but racecheck does not follow it.
template <class C>
struct WildWriter {
  WgmmaShared<C>& smem;
  uint32_t parity = ~0u;  // a bit for each stage

  __device__ __forceinline__ void tell(int stage, bool found) {
    const bool any = __any_sync(0xffffffffu, found);
    if constexpr (kReportsWild<C>) {
      mbarrier_wait(smem_address(&smem.judged[stage]), parity >> stage & 1);
      parity ^= 1u << stage;
      if (threadIdx.x % 32 == 0) smem.wild[stage][threadIdx.x / 32] = any;
    }
  }
};
template <class C>
__device__ __forceinline__ bool read_wild(WgmmaShared<C>& smem, int stage) {
  const uint4 wild = *reinterpret_cast<const uint4*>(smem.wild[stage]);
  mbarrier_arrive(smem_address(&smem.judged[stage]));
  return (wild.x | wild.y | wild.z | wild.w) != 0;
}

// Byte offset of a 16-byte chunk of a token in a tile of K or V.
template <class C>
__device__ __forceinline__ uint32_t kv_place(int token, int chunk) {
  using Shared = WgmmaShared<C>;
  return chunk / 8 * Shared::kKvPanel + token / 8 * Shared::kKvGroup + panel_address(token % 8, chunk % 8);
}

template <class C>
using WorkQueue = WorkQueueIn<WgmmaShared<C>, Work>;

}  // namespace opfacade
