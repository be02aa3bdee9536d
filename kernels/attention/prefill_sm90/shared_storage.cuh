// Shared memory of a prefill CTA on sm_90a, and the barriers between its roles. Warpgroup 0 is the producer; each other
// warpgroup computes 64 rows. K and V of one key tile have the same stage number.
//
// Q and ragged K and V are stored panel by panel; paged K and V store eight tokens with all their panels together, so that one
// box has all columns of its tokens.
#pragma once
#include "kernels/attention/prefill_sm90/scheduler.cuh"
#include "kernels/pipeline/work_queue.cuh"
#include "kernels/ptx/wgmma_registers.cuh"
#include "kernels/tile/panel.cuh"

namespace opfacade {

template <class C>
constexpr int kConsumers = C::Tile::kConsumerWarpgroups;  // warpgroups
template <class C>
constexpr int kConsumerThreads = kConsumers<C> * kWarpgroup;  // number of threads
template <class C>
constexpr int kConsumerWarps = kConsumers<C> * 4;  // number of warps, each of which arrives once
template <class C>
constexpr int kReaders = (kConsumerWarps<C> + 3) * 32;  // threads that read published work

// Named barriers. kPingPong + i: consumer warpgroup i may issue products. kConsumerBarrier: all consumers. kTileWarpBarrier:
// the tile warps. kOwnGroup + i: the threads of consumer warpgroup i.
enum : int { kPingPong = 1, kConsumerBarrier = 4, kTileWarpBarrier = 5, kOwnGroup = 6 };
constexpr int kPingPongThreads = 2 * kWarpgroup;  // one warpgroup waits, one arrives

// The coordinates of a box in the map of K or V.
struct PageBox {
  int group;  // index in its page of the eight-token group; raw fp8: of the first token
  int place;  // page and head: page * page_step + head
};

// Raw fp8 tiles, and the score factor of each row.
template <int kSlots, int kSlotBytes, int kRawRows, int kRows>
struct RawShared {
  alignas(128) unsigned char slots[kSlots][kSlotBytes];
  const char* rows[kSlots][kRawRows];  // row addresses, if threads copy
  uint64_t full[kSlots], empty[kSlots];
  float factor[kRows];
};
template <int kSlotBytes, int kRawRows, int kRows>
struct RawShared<0, kSlotBytes, kRawRows, kRows> {};

// Raw V of fp8 products, before its transpose. `ended` contains the bases and sums of the two rows of each consumer thread,
// saved at the end of its work because they do not fit in registers.
template <int kStages, int kBytes, bool kTransposes>
struct RawValues {};
template <int kStages, int kBytes>
struct RawValues<kStages, kBytes, true> {
  alignas(1024) unsigned char v[kStages][kBytes];
  uint64_t full[kStages], empty[kStages];
  float4 ended[2 * kWarpgroup];
};
template <class Tile, bool kTransposes>
struct RawValuesOf {
  using Shared = RawValues<0, 0, false>;
};
template <class Tile>
struct RawValuesOf<Tile, true> {
  using Shared = RawValues<Tile::kRawStages, Tile::kTileBytes, true>;
};

// kFp8Products: the products are fp8, and V is transposed. kAsStored: K and V have the element type of the products in memory;
// otherwise they are dequantised.
template <class C>
constexpr bool kFp8Products = C::Tile::kElementBytes == 1;
template <class C>
constexpr bool kAsStored = C::Tile::kElementBytes == C::kKvBytes;

// The last warps of warpgroup 0 prepare tiles: they check masked tiles after TMA, transpose V, or dequantise.
template <class C>
constexpr int kTileWarps = kAsStored<C> ? 2 : 3;

// Without TMA: kCopiers threads of warpgroup 0 copy K, the other half copy V, and all (kQueryCopiers) copy Q. fp8 cache to be
// dequantised: one warp (kCopiers) looks up the rows of K and V, and the dequantising warps (kQueryCopiers) copy K, V and Q.
template <class C>
constexpr int kCopiers = kAsStored<C> ? kWarpgroup / 2 : 32;
template <class C>
constexpr int kQueryCopiers = kAsStored<C> ? kWarpgroup : kTileWarps<C> * 32;

// True if non-finite values may have to be hidden from a row.
template <class C>
constexpr bool kReportsNonfinite = C::kCausal || C::kWindow || kHidesMore<C>;

// State of split=pieces: see cut.cuh.
template <bool kCuts>
struct Pieces {
  CutLine line;
  Work parts[2];  // parts that this CTA computed: see keep_part
};
template <>
struct Pieces<false> {
  CutLine line;
};

template <class C>
struct WgmmaShared {
  using Tile = typename C::Tile;
  static constexpr int kPanels = C::kHeadDim * Tile::kElementBytes / 128;  // panels of Q and K
  static constexpr int kQPanel = Tile::kRows * 128;
  static constexpr bool kPaged = C::kTable != TableForm::kRagged;
  static constexpr int kKvPanel = kPaged ? 1024 : C::kTileKv * 128;  // bytes between panels
  static constexpr int kKvGroup = kPaged ? kPanels * 1024 : 1024;    // bytes between groups of eight tokens
  static constexpr int kQStages = Tile::kQStages;
  static_assert(!kPaged || C::kHeadDimVo == C::kHeadDim, "K and V have one step from eight tokens to the next");

  alignas(1024) unsigned char q[kQStages][kPanels * kQPanel];
  alignas(1024) unsigned char k[C::kStages][Tile::kKBytes];
  alignas(1024) unsigned char v[C::kStages][Tile::kVBytes];
  uint64_t q_full[kQStages], q_empty[kQStages];
  uint64_t work_full[kQueue], work_empty[kQueue];
  uint64_t k_full[C::kStages], k_empty[C::kStages];
  uint64_t v_full[C::kStages], v_empty[C::kStages];
  uint64_t v_checked[C::kStages];                  // masked tiles only: V has been checked, `nonfinite` is set
  alignas(16) uint32_t nonfinite[C::kStages][4];    // per warp of warpgroup 0: the warp has found non-finite values
  uint64_t nonfinite_read[C::kStages];                 // masked tiles only: every consumer thread has read `nonfinite`
  uint64_t dummy;                             // a barrier on which no thread waits
  Work work[kQueue];
  Lengths lengths[kMaxRanked];
  Progress progress;                           // the schedule state of the warp that finds work
  alignas(16) PageBox boxes[2][32];            // [K, V]
  // Byte offsets of rows, if threads copy without dequantisation: [K, V][token % 8][token / 8]. Padding of two spreads a warp's
  // reads over all banks.
  static constexpr bool kFindsRows = kAsStored<C> && !kFp8Products<C>;
  alignas(16) uint64_t rows[2][kFindsRows ? 8 : 1][kFindsRows ? C::kTileKv / 8 + 2 : 2];
  RawShared<Tile::kRawSlots, Tile::kRawBytes, Tile::kRawRows, Tile::kRows> raw;
  typename RawValuesOf<Tile, kFp8Products<C>>::Shared raw_v;
  Pieces<kCutsByLengths<C>> pieces;
};

template <class C>
__device__ __forceinline__ void init_barriers(WgmmaShared<C>& smem, bool mapped) {
  const bool checks = kAsStored<C> && !kFp8Products<C> && mapped;
  const int loaders = !kAsStored<C> ? kTileWarps<C> * 32 : mapped ? 1 : kCopiers<C>;
  for (int i = 0; i < WgmmaShared<C>::kQStages; ++i) {
    mbarrier_init(smem_address(&smem.q_full[i]), mapped ? 1 : kQueryCopiers<C>);
    mbarrier_init(smem_address(&smem.q_empty[i]), kConsumerWarps<C>);
  }
  // The barrier expects one arrival more than ever occurs, so no phase completes: a completed phase would hide a missing wait
  // from compute-sanitizer's synccheck.
  mbarrier_init(smem_address(&smem.dummy), kConsumerWarps<C> + 1);
  for (int i = 0; i < kQueue; ++i) {
    mbarrier_init(smem_address(&smem.work_full[i]), 1);
    mbarrier_init(smem_address(&smem.work_empty[i]), kReaders<C>);
  }
  for (int i = 0; i < C::kStages; ++i) {
    mbarrier_init(smem_address(&smem.k_full[i]), loaders);
    mbarrier_init(smem_address(&smem.v_full[i]), kFp8Products<C> ? kTileWarps<C> : loaders);
    mbarrier_init(smem_address(&smem.k_empty[i]), kConsumerWarps<C>);
    mbarrier_init(smem_address(&smem.v_empty[i]), kConsumerWarps<C> + (checks ? kTileWarps<C> : 0));
    mbarrier_init(smem_address(&smem.v_checked[i]), kTileWarps<C>);
    mbarrier_init(smem_address(&smem.nonfinite_read[i]), kConsumerThreads<C>);
    for (int warp = 0; warp < 4; ++warp) smem.nonfinite[i][warp] = 0;
  }
  if constexpr (kFp8Products<C>) {
    for (int i = 0; i < C::Tile::kRawStages; ++i) {
      mbarrier_init(smem_address(&smem.raw_v.full[i]), 1);
      mbarrier_init(smem_address(&smem.raw_v.empty[i]), kTileWarps<C>);
    }
  }
  if constexpr (!kAsStored<C>) {
    for (int i = 0; i < C::Tile::kRawSlots; ++i) {
      mbarrier_init(smem_address(&smem.raw.full[i]), mapped ? 1 : kCopiers<C>);
      mbarrier_init(smem_address(&smem.raw.empty[i]), kTileWarps<C> * 32);
    }
  }
  if constexpr (kCutsByLengths<C>)
    for (Work& part : smem.pieces.parts) part.tile.rows = 0;
  mbarrier_init_fence();
}

// The tile warps report to the consumers that a masked tile of V has non-finite values. nonfinite_read keeps the report from
// being overwritten early. v_empty, with one arrival per warp, would suffice, but compute-sanitizer's racecheck cannot follow
// it.
template <class C>
struct NonfiniteReport {
  WgmmaShared<C>& smem;
  uint32_t parity = ~0u;  // one bit per stage

  __device__ __forceinline__ void publish(int stage, bool found) {
    const bool any = __any_sync(0xffffffffu, found);
    if constexpr (kReportsNonfinite<C>) {
      mbarrier_wait(smem_address(&smem.nonfinite_read[stage]), parity >> stage & 1);
      parity ^= 1u << stage;
      if (threadIdx.x % 32 == 0) smem.nonfinite[stage][threadIdx.x / 32] = any;
    }
  }
};
template <class C>
__device__ __forceinline__ bool read_nonfinite(WgmmaShared<C>& smem, int stage) {
  const uint4 nonfinite = *reinterpret_cast<const uint4*>(smem.nonfinite[stage]);
  mbarrier_arrive(smem_address(&smem.nonfinite_read[stage]));
  return (nonfinite.x | nonfinite.y | nonfinite.z | nonfinite.w) != 0;
}

// The byte offset of a 16-byte chunk of a token in a K or V tile.
template <class C>
__device__ __forceinline__ uint32_t kv_place(int token, int chunk) {
  using Shared = WgmmaShared<C>;
  return panels_address(token, chunk, Shared::kKvPanel, Shared::kKvGroup);
}

template <class C>
using WorkQueue = WorkQueueIn<WgmmaShared<C>, Work>;

}  // namespace opfacade
