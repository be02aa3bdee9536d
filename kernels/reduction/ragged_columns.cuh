// A fold of columns over rows of different lengths. A CTA folds a tile of the columns of one row.
#pragma once
#include "kernels/reduction/columns.cuh"
#include "kernels/reduction/ragged_range.cuh"

namespace opfacade {

template <class M, Lie kLie>
struct RaggedColumns {
  using Params = typename M::Params;
  const Params& p;

  __device__ __forceinline__ explicit RaggedColumns(const Params& params) : p(params) {}

  __device__ __forceinline__ void run() {
    using Fold = ColumnFold<M, kLie>;
    wait_for_previous();
    Fold fold(p, blockIdx.x, 0, 0);
    const RowRange range = range_of<M>(p, fold.place[0]);
    fold.end = range.length * p.unit;
    fold.begin_run();
#pragma unroll
    for (int j = 0; j < Fold::kVec; ++j) fold.constants[j].length = range.length;
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) fold.at[k] += range.begin * p.stride[k][p.kept];
    fold.finish_run();
  }
};

}  // namespace opfacade
