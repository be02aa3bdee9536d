// A fold of few long columns. CTAs fold parts of a tile of columns, and the merge launch of split.cuh joins the parts.
#pragma once
#include "kernels/reduction/columns.cuh"
#include "kernels/reduction/split.cuh"

namespace opfacade {

template <class M, Lie kLie>
struct ColumnPart {
  using Params = typename M::Params;
  using Fold = ColumnFold<M, kLie>;

  const Params& p;
  const uint32_t block, part;  // of the grid

  __device__ __forceinline__ explicit ColumnPart(const Params& params)
      : p(params), block(blockIdx.x / p.parts), part(blockIdx.x % p.parts) {}

  __device__ __forceinline__ void run() {
    Fold fold(p, block, part * p.chunk, min((part + 1) * p.chunk, int64_t{p.elements}));
    fold.begin_run();
    fold.stages([&](auto stage, const auto& states) {
      if (fold.group != 0) return;
#pragma unroll
      for (int j = 0; j < Fold::kVec; ++j)
        if (j < fold.columns) store_partial<M, decltype(stage)::kStage>(p, first_column() + j, part, states[j]);
    });
  }

 private:
  // Index of this thread's first column among the columns of all rows.
  __device__ __forceinline__ int64_t first_column() const {
    const uint32_t tiles = Fold::tiles_of(p);
    return block / tiles * p.extent[p.kept - 1] + int64_t{block % tiles} * Fold::Tile::kColumns + static_cast<int>(threadIdx.x) % Fold::Tile::kLanes * Fold::kVec;
  }
};

}  // namespace opfacade
