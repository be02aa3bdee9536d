// Shared memory of a product of codes: rings of codes and of x, and partial sums.
//
// The operands are exchanged: columns of the product, 64 for each computing warpgroup, lie on the rows of wgmma, and rows of x on
// its columns, 8 and more. A warpgroup decodes its codes from shared memory to registers, which are wgmma's A.
#pragma once
#include "kernels/matmul/groups.cuh"

namespace opfacade {

constexpr int kCodesStep = 256;              // elements of k in a stage of codes: lines of 128 bytes, swizzled
constexpr int kCodesPanels = 4;              // panels of x for them
constexpr int kCodesRows = 64;               // columns of the product for a warpgroup
constexpr int kCodesPart = kCodesRows * 128;  // bytes of a stage for a warpgroup
constexpr int kSumsPitch = 68;  // floats: neighbouring rows of x are 2 * 68 % 32 = 8 banks apart

// A config C, besides those of Tiles: kTokens rows of x in a tile; kAlong warpgroups have the columns of a tile together, and each a
// segment of k, with rings of its own: a team; or kBeside warpgroups of one team have columns side by side. kSplit CTAs have a tile,
// and kAlong segments each. kSegments: k has several segments, which one warpgroup adds where it has all of them.
// kCodeStages of kLines lines of 128 bytes of a column each; kXStages of kXPanels panels each. kLoaders threads only load. kAside CTAs of a cluster, those of a segment, have columns side by side, and each
// loads a part of their rows of x for all.
template <class C>
struct CodedShared {
  static constexpr int kCodes = C::kBeside * C::kLines * kCodesPart, kPanelX = C::kTokens * 128, kX = C::kXPanels * kPanelX;
  static constexpr int kTeam = C::kCodeStages * kCodes + C::kXStages * kX, kBarriersOfTeam = 16 * (C::kCodeStages + C::kXStages);
  static constexpr int kRound = C::kTokens < 32 ? C::kTokens : 32;  // rows of x whose sums are finished together
  static constexpr int kPartial = kRound * kSumsPitch * 4, kWarpgroups = C::kAlong * C::kBeside;
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

// The part of a config that copy_panels reads.
template <int kBytes, int kManyPanels>
struct CopiedPanels {
  static constexpr int kSize = kBytes, kPanels = kManyPanels, kRows = 128, kColumns = 128;  // one chunk of a thread is under way
  static constexpr bool kSwapped = false;
};

template <class C>
struct WideColumns : C {
  static constexpr int kColumns = C::kColumns * C::kAside;
};

// The tiles of one product, or of groups, whose table lies behind the barriers.
template <class C, bool kGrouped>
struct TilesOfCodes : Tiles<C> {
  __device__ __forceinline__ explicit TilesOfCodes(const MatmulParams& p) : Tiles<C>(p) {}
};
template <class C>
struct TilesOfCodes<C, true> : GroupTiles<C> {
  __device__ __forceinline__ explicit TilesOfCodes(const MatmulParams& p)
      : GroupTiles<C>(p, reinterpret_cast<int*>(dynamic_shared() + CodedShared<C>::kBytes)) {}
};

// The same, of which those of a cluster lie side by side.
template <class C>
struct CodedTiles {
  TilesOfCodes<WideColumns<C>, C::kGrouped> wide;

  __device__ __forceinline__ explicit CodedTiles(const MatmulParams& p) : wide(p) {}
  static __device__ __forceinline__ int aside() { return C::kAside > 1 ? blockIdx.x % C::kAside : 0; }
  static __device__ __forceinline__ int segment() { return C::kSplit > 1 ? blockIdx.x / C::kAside % C::kSplit : 0; }
  // In the cluster: of the CTA aside `aside` that has segment `segment`.
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

// The elements of k from `begin` to `end` are summed apart.
struct Segment {
  int begin, end;
  __device__ __forceinline__ Segment(const MatmulParams& p, int index)
      : begin(index * p.segment), end(min(p.k, (index + 1) * p.segment)) {}
};

// How many a team has, from which on.
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
