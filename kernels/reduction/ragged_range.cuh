// The range of a ragged row along axis 1, clamped to the tensor: an invalid entry of indptr gives a shorter or an empty row.
#pragma once
#include "kernels/reduction/ragged_params.h"

namespace opfacade {

template <class M>
__device__ __forceinline__ RowRange range_of(const typename M::Params& p, int64_t row) {
  const auto* const indptr = static_cast<const typename M::Index*>(p.indptr);
  const int64_t total = p.extent[p.kept];
  const int64_t begin = min(max(int64_t{indptr[row]}, int64_t{0}), total);
  const int64_t end = min(max(int64_t{indptr[row + 1]}, begin), total);
  return {begin, end - begin};
}

}  // namespace opfacade
