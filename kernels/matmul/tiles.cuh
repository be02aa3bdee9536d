// The tiles of a matmul, in the order in which persistent CTAs compute them, and the shared memory of a CTA.
#pragma once
#include "kernels/matmul/matmul_params.h"
#include "kernels/pipeline/ring.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/warpgroup.cuh"
#include "kernels/ptx/wgmma_layouts.cuh"
#include "kernels/tile/fragment.cuh"
#include "kernels/tile/panel.cuh"

namespace opfacade {

constexpr int kPanelBytes = 128;   // bytes per row of a panel
constexpr int kPanelRows = 64;     // rows per panel if 16-bit rows run along the panel
constexpr int kAcross = 64 * 128;  // bytes per panel of 64 rows and 64 elements of k, if rows run along it
template <class C>
constexpr int kPanel = kPanelBytes / C::kSize;  // elements of k per panel

// A config C. T: type of operands. kSize: bytes per element. kRows, kColumns: tile size. kPanels: panels of k per stage.
// kStages: stages. There are kRows / 64 computing warpgroups. kXAcross, kWeightAcross: the rows of an operand run along the
// panels (wgmma_layouts.cuh), because they are contiguous in memory. kCluster: CTAs of a cluster with adjacent tiles of the
// same columns; each loads a part of their weight for all. Alternatively, kSplit: CTAs of a cluster that share one tile and
// have kOwn segments of k each. kTerms: operands whose sum is the weight, consecutive in a stage. kSwapped: rows of x are on N
// of wgmma and columns of the product on M (swapped.cuh); then there are kColumns / 64 computing warpgroups, and kRows is the
// maximum number of rows of a tile. kFactors: the producer stores scale factors after the barriers, one per row and part of k
// (factors.cuh).
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
  // Scale factors: those of the rows of a panel are contiguous, followed by those of the next panel.
  __device__ __forceinline__ uint32_t factors(int stage) const { return base + kFactors + stage * kEach; }
};

// end: first row after those of its product or group. weight: index of its weight.
struct Tile {
  int batch, row, column;  // indices of the first element
  int end, weight;
};

// With rows of x on N: rows per TMA load, and also the width of the narrowest wgmma.
template <class C>
constexpr int kRowsUnit = C::kRows / 8;

// Number of units of kRowsUnit rows in a tile, which has at least one row.
template <class C>
__device__ __forceinline__ int units_of(const Tile& tile) {
  return min(8, (tile.end - tile.row + kRowsUnit<C> - 1) / kRowsUnit<C>);
}

// The row of x for a row of the product; -1 if there is none.
__device__ __forceinline__ int row_taken(const MatmulParams& p, const Tile& tile, int row) {
  const int found = row < tile.end ? p.x_rows[static_cast<int64_t>(tile.batch) * p.rows + row] : -1;
  return static_cast<uint32_t>(found) < static_cast<uint32_t>(p.num_x_rows) ? found : -1;
}

// Number of valid rows; 0 if the count is wrong.
__device__ __forceinline__ int valid_rows(const MatmulParams& p) {
  const int counted = p.num_valid == nullptr ? p.rows : *p.num_valid;
  return static_cast<uint32_t>(counted) <= static_cast<uint32_t>(p.rows) ? counted : 0;
}

// Tiles are ordered in bands of kBand rows of tiles, column by column in a band, so that concurrent CTAs share both operands in
// L2.
template <class C>
struct Tiles {
  static constexpr int kBand = 8;
  static constexpr int kHeight = C::kRows * C::kCluster;  // rows of the tiles of a cluster
  int rows, down, across, steps, begin;  // steps: steps of k of this CTA; begin: its first step

  __device__ __forceinline__ explicit Tiles(const MatmulParams& p) {
    rows = valid_rows(p);
    down = (rows + kHeight - 1) / kHeight, across = (p.columns + C::kColumns - 1) / C::kColumns;
    steps = max(1, (p.k + C::kPanels * kPanel<C> - 1) / (C::kPanels * kPanel<C>));  // an empty k has one step of zeros
    begin = 0;
    if constexpr (C::kSplit > 1) {
      const int own = C::kOwn * (p.segment / (C::kPanels * kPanel<C>));
      begin = segment() * own, steps = min(own, steps - begin);
    }
  }
  static __device__ __forceinline__ int rank() { return C::kCluster > 1 ? blockIdx.x % C::kCluster : 0; }
  static __device__ __forceinline__ int segment() { return C::kSplit > 1 ? blockIdx.x % C::kSplit : 0; }
  // This CTA computes tiles first(), first() + stride() and so on.
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
