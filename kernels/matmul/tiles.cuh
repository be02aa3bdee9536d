// The tiles of a product, in the order in which persistent CTAs take them, and the shared memory of a CTA.
#pragma once
#include "kernels/matmul/matmul_params.h"
#include "kernels/pipeline/ring.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/warpgroup.cuh"
#include "kernels/ptx/wgmma_layouts.cuh"

namespace opfacade {

constexpr int kPanelBytes = 128;   // of a row in a panel
constexpr int kPanelRows = 64;     // in a panel that rows of 16-bit elements lie along
constexpr int kAcross = 64 * 128;  // bytes of such a panel of 64 elements of k
template <class C>
constexpr int kPanel = kPanelBytes / C::kSize;  // elements of k in a panel

// A config C: T, kSize in bytes, kRows, kColumns of a tile, kPanels of k in a stage, kStages; kRows is 64 for each computing warpgroup. The
// kXAcross, kWeightAcross: rows lie along the panels of an operand (wgmma_layouts.cuh), as they are contiguous in memory. The
// kCluster CTAs of a cluster have tiles one below the other, which share their weight: each loads a part of it for all. Or the
// kSplit CTAs of a cluster have one tile, and each kOwn segments of k. kTerms: operands that a weight is the sum of, one behind the
// other in a stage. kSwapped: rows of x lie on N of wgmma and columns of the product on M (swapped.cuh); then kColumns is 64 for
// each computing warpgroup, and kRows are the most rows of a tile. kFactors: the producer puts
// factors of sums behind the barriers, one for each row and part of k (factors.cuh).
template <class C>
constexpr int kComputing = (C::kSwapped ? C::kColumns : C::kRows) / 64;  // warpgroups
template <class C>
struct MatmulShared {
  static constexpr int kX = C::kPanels * C::kRows * 128, kWeight = C::kTerms * C::kPanels * C::kColumns * 128;
  static constexpr int kStage = kX + kWeight, kBarriers = C::kStages * kStage;
  static constexpr int kEach = C::kFactors ? 4 * C::kPanels * C::kRows : 0, kFactors = kBarriers + C::kStages * 16;
  static constexpr int kBytes = kFactors + C::kStages * kEach;

  uint32_t base;
  __device__ __forceinline__ uint32_t x(int stage) const { return base + stage * kStage; }
  __device__ __forceinline__ uint32_t weight(int stage) const { return base + stage * kStage + kX; }
  __device__ __forceinline__ uint32_t full(int stage) const { return base + kBarriers + stage * 16; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return base + kBarriers + stage * 16 + 8; }
  // Factors of rows lie behind each other, and those of the next panel behind them.
  __device__ __forceinline__ uint32_t factors(int stage) const { return base + kFactors + stage * kEach; }
};

// end: behind its last row; weight: which of the batch of weights it has.
struct Tile {
  int batch, row, column;  // of its first element
  int end, weight;
};

// Where rows of x lie on N: those that come by one load; the narrowest product has as many.
template <class C>
constexpr int kRowsUnit = C::kRows / 8;

// How many of these a tile has, which holds a row at least.
template <class C>
__device__ __forceinline__ int units_of(const Tile& tile) {
  return min(8, (tile.end - tile.row + kRowsUnit<C> - 1) / kRowsUnit<C>);
}

// The row of x that a row of a tile takes; -1: none.
__device__ __forceinline__ int row_taken(const MatmulParams& p, const Tile& tile, int row) {
  const int found = row < tile.end ? p.x_rows[static_cast<int64_t>(tile.batch) * p.rows + row] : -1;
  return static_cast<uint32_t>(found) < static_cast<uint32_t>(p.num_x_rows) ? found : -1;
}

// Tiles of kBand rows of tiles go column by column, so that CTAs that run together share both operands in the L2.
template <class C>
struct Tiles {
  static constexpr int kBand = 8;
  static constexpr int kHeight = C::kRows * C::kCluster;  // of the tiles of a cluster
  int rows, down, across, steps, begin;  // of this CTA: how many steps of k, behind how many

  __device__ __forceinline__ explicit Tiles(const MatmulParams& p) {
    rows = p.rows;
    if (p.num_valid != nullptr) rows = max(0, min(rows, *p.num_valid));
    down = (rows + kHeight - 1) / kHeight, across = (p.columns + C::kColumns - 1) / C::kColumns;
    steps = max(1, (p.k + C::kPanels * kPanel<C> - 1) / (C::kPanels * kPanel<C>));  // without k one step of zeros
    begin = 0;
    if constexpr (C::kSplit > 1) {
      const int own = C::kOwn * (p.segment / (C::kPanels * kPanel<C>));
      begin = segment() * own, steps = min(own, steps - begin);
    }
  }
  static __device__ __forceinline__ int rank() { return C::kCluster > 1 ? blockIdx.x % C::kCluster : 0; }
  static __device__ __forceinline__ int segment() { return C::kSplit > 1 ? blockIdx.x % C::kSplit : 0; }
  // This CTA takes first(), first() + stride() and so on.
  static __device__ __forceinline__ int first() { return blockIdx.x / (C::kCluster * C::kSplit); }
  static __device__ __forceinline__ int stride() { return gridDim.x / C::kCluster; }
  __device__ __forceinline__ int count(const MatmulParams& p) const { return p.batch * down * across; }
  __device__ __forceinline__ Tile at(int index) const {
    const int each = down * across, batch = index / each, rest = index % each;
    const int first = rest / (kBand * across) * kBand, height = min(kBand, down - first), in_band = rest - first * across;
    return {batch, (first + in_band % height) * kHeight + rank() * C::kRows, in_band / height * C::kColumns, rows, batch};
  }
};

}  // namespace opfacade
