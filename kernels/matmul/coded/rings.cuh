// Shared memory of a matmul with coded weights: rings of codes and of x, and partial sums.
//
// The operands are exchanged: columns of the product, 64 per computing warpgroup, are the rows (M) of wgmma, and rows of x are
// its columns (N), at least 8. A warpgroup decodes its codes from shared memory into registers as the A operand.
#pragma once
#include "kernels/matmul/groups.cuh"

namespace opfacade {

constexpr int kCodesStep = 256;              // elements of k per stage of 4-bit codes: lines of 128 bytes, swizzled
constexpr int kCodesPanels = 4;              // panels of x per stage of codes
constexpr int kCodesRows = 64;               // columns of the product per warpgroup
constexpr int kCodesPart = kCodesRows * 128;  // bytes of one line of codes for each column of a warpgroup
constexpr int kSumsPitch = 68;  // floats per row of partial sums: rows that are two apart are 2 * 68 % 32 = 8 banks apart

// A config C, in addition to that of Tiles. kTokens: rows of x per tile. kAlong: teams. If there are several, each team has one
// warpgroup, its own rings and one segment of k; all have the same columns. kBeside: warpgroups of a single team, which have
// adjacent columns. kSplit: CTAs that share a tile, with kAlong segments each. kSegments: k has several segments; a warpgroup
// that sums all of k adds them in order. kCodeStages: stages of codes, with kLines lines of 128 bytes per column. kXStages:
// stages of x, with kXPanels panels each. kLoaders: threads that only load. kAside: CTAs of a cluster with the same segment and
// adjacent columns; each loads a part of the rows of x for all of them. kSums: scales multiply the sums of groups; otherwise
// they multiply codes, or the sums of columns.
template <class C>
struct CodedShared {
  static constexpr int kCodes = C::kBeside * C::kLines * kCodesPart, kPanelX = C::kTokens * 128, kX = C::kXPanels * kPanelX;
  static constexpr int kTeam = C::kCodeStages * kCodes + C::kXStages * kX, kBarriersOfTeam = 16 * (C::kCodeStages + C::kXStages);
  static constexpr int kRound = C::kTokens < 32 ? C::kTokens : 32;  // rows of x per round of the epilogue
  // kParks: sums of a segment, sums of a group and totals do not fit in registers together, so totals are in shared memory.
  static constexpr bool kParks = C::kSums && C::kSegments && C::kAlong == 1 && C::kTokens > 64;
  static constexpr int kParked = kParks ? C::kTokens / 2 * kWarpgroup * 4 : 0, kRounded = kRound * kSumsPitch * 4;
  static constexpr int kPartial = kParked > kRounded ? kParked : kRounded, kWarpgroups = C::kAlong * C::kBeside;
  static constexpr int kPartials = C::kAlong * kTeam, kBarriers = kPartials + kWarpgroups * kPartial;
  static constexpr int kBytes = kBarriers + C::kAlong * kBarriersOfTeam;
  static constexpr int kRounds = C::kTokens / kRound;

  uint32_t base;
  int team;
  __device__ __forceinline__ uint32_t codes(int stage) const { return base + team * kTeam + stage * kCodes; }
  __device__ __forceinline__ uint32_t x(int stage) const { return base + team * kTeam + C::kCodeStages * kCodes + stage * kX; }
  __device__ __forceinline__ uint32_t codes_full(int stage) const { return base + kBarriers + team * kBarriersOfTeam + stage * 16; }
  __device__ __forceinline__ uint32_t codes_empty(int stage) const { return codes_full(stage) + 8; }
  __device__ __forceinline__ uint32_t x_full(int stage) const { return codes_full(C::kCodeStages + stage); }
  __device__ __forceinline__ uint32_t x_empty(int stage) const { return x_full(stage) + 8; }
  static __device__ __forceinline__ uint32_t partial(int warpgroup) { return kPartials + warpgroup * kPartial; }  // from base on
};

// The members of a config that copy_panels reads.
template <int kBytes, int kManyPanels>
struct CopiedPanels {
  // more than one computing warpgroup, so that a thread loads one chunk at a time
  static constexpr int kSize = kBytes, kPanels = kManyPanels, kRows = 128, kColumns = 128;
  static constexpr bool kSwapped = false;
};

template <class C>
struct WideColumns : C {
  static constexpr int kColumns = C::kColumns * C::kAside;
};

// The tiles of one product, or of groups. The table of groups follows the barriers in shared memory.
template <class C, bool kGrouped>
struct TilesOfCodes : Tiles<C> {
  __device__ __forceinline__ explicit TilesOfCodes(const MatmulParams& p) : Tiles<C>(p) {}
};
template <class C>
struct TilesOfCodes<C, true> : GroupTiles<C> {
  __device__ __forceinline__ explicit TilesOfCodes(const MatmulParams& p)
      : GroupTiles<C>(p, reinterpret_cast<int*>(dynamic_shared() + CodedShared<C>::kBytes)) {}
};

// Tiles of TilesOfCodes whose columns are divided among the kAside CTAs of a cluster.
template <class C>
struct CodedTiles {
  TilesOfCodes<WideColumns<C>, C::kGrouped> wide;

  __device__ __forceinline__ explicit CodedTiles(const MatmulParams& p) : wide(p) {}
  static __device__ __forceinline__ int aside() { return C::kAside > 1 ? blockIdx.x % C::kAside : 0; }
  static __device__ __forceinline__ int segment() { return C::kSplit > 1 ? blockIdx.x / C::kAside % C::kSplit : 0; }
  // Rank in the cluster of CTA `aside` among those that have segment `segment`.
  static __device__ __forceinline__ int rank(int segment, int aside) { return segment * C::kAside + aside; }
  static __device__ __forceinline__ int first() { return blockIdx.x / (C::kAside * C::kSplit); }
  static __device__ __forceinline__ int stride() { return gridDim.x / (C::kAside * C::kSplit); }
  __device__ __forceinline__ int count(const MatmulParams& p) const { return wide.count(p); }
  __device__ __forceinline__ Tile at(int index) const {
    Tile found = wide.at(index);
    found.column += aside() * C::kColumns;
    return found;
  }
};

// A segment of k, from element `begin` to before element `end`. Segments are summed separately.
struct Segment {
  int begin, end;
  __device__ __forceinline__ Segment(const MatmulParams& p, int index)
      : begin(index * p.segment), end(min(p.k, (index + 1) * p.segment)) {}
};

// The segments of a team: from `first` to before `stop`. all: number of segments of k.
template <class C>
struct SegmentsOf {
  int first, stop, all;
  __device__ __forceinline__ SegmentsOf(const MatmulParams& p, int team) {
    all = C::kSegments ? (p.k + p.segment - 1) / p.segment : 1;
    const bool whole = C::kAlong * C::kSplit == 1;
    first = whole ? 0 : CodedTiles<C>::segment() * C::kAlong + team, stop = whole ? all : min(all, first + 1);
  }
};

}  // namespace opfacade
