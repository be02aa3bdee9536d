// Tiles of grouped matmuls. The rows of each group are known only on the device. Every CTA counts the tiles of all groups
// before it computes its first tile.
#pragma once
#include "kernels/matmul/tiles.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

// A config C has kMasked. If true, x and out have an equal part for each group, and counts contains the number of its valid
// rows. Otherwise the rows of groups are consecutive: group g has rows indptr[g] to indptr[g + 1].
struct GroupRows {
  int first, stop;
};

// The range of a group in an indptr table, for a dimension of `size` elements. The range is clamped, so that an invalid table
// causes no access outside.
__device__ __forceinline__ GroupRows part_of_group(const MatmulParams& p, int group, int size) {
  const int first = min(max(p.groups[group], 0), size);
  return {first, min(max(p.groups[group + 1], first), size)};
}

template <bool kMasked>
__device__ __forceinline__ GroupRows rows_of_group(const MatmulParams& p, int group) {
  if constexpr (!kMasked) return part_of_group(p, group, p.rows);
  const int count = p.groups[group];
  return {0, count < 0 || count > p.rows ? 0 : count};
}

// Tiles of groups. before: for each group, the number of rows of tiles of earlier groups, then the total; in shared memory
// after the barriers.
template <class C>
struct GroupTiles {
  static constexpr int kBand = Tiles<C>::kBand, kHeight = Tiles<C>::kHeight;
  int* before;
  const MatmulParams& p;
  int steps, begin, across;

  // Called by all threads of the CTA.
  __device__ __forceinline__ explicit GroupTiles(const MatmulParams& params, int* table = group_table()) : before(table), p(params) {
    steps = max(1, (p.k + C::kPanels * kPanel<C> - 1) / (C::kPanels * kPanel<C>)), begin = 0;
    across = (p.columns + C::kColumns - 1) / C::kColumns;
    for (int group = threadIdx.x; group < p.batch; group += blockDim.x) {
      const GroupRows rows = rows_of_group<C::kMasked>(p, group);
      before[group + 1] = (rows.stop - rows.first + kHeight - 1) / kHeight;
    }
    __syncthreads();
    if (threadIdx.x < 32) sum_up();
    __syncthreads();
  }
  static __device__ __forceinline__ int* group_table() { return reinterpret_cast<int*>(dynamic_shared() + MatmulShared<C>::kBytes); }

  // Converts counts to prefix sums. Called by one warp.
  __device__ __forceinline__ void sum_up() const {
    int carried = 0;
    for (int first = 1; first <= p.batch; first += 32) {
      const int at = first + static_cast<int>(threadIdx.x);
      int sum = at <= p.batch ? before[at] : 0;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int lower = __shfl_up_sync(0xffffffffu, sum, step);
        if (static_cast<int>(threadIdx.x) >= step) sum += lower;
      }
      if (at <= p.batch) before[at] = carried + sum;
      carried += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (threadIdx.x == 0) before[0] = 0;
  }
  static __device__ __forceinline__ int first() { return Tiles<C>::first(); }
  static __device__ __forceinline__ int stride() { return Tiles<C>::stride(); }
  __device__ __forceinline__ int count(const MatmulParams&) const { return before[p.batch] * across; }

  // The group that contains row `row` of tiles.
  __device__ __forceinline__ int group_of(int row) const {
    int low = 0, high = p.batch;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (before[middle] <= row) low = middle; else high = middle;
    }
    return low;
  }
  // Tiles of a group are in the same order as the tiles of a single product.
  __device__ __forceinline__ Tile at(int index) const {
    const int group = group_of(index / across), down = before[group + 1] - before[group], rest = index - before[group] * across;
    const int first = rest / (kBand * across) * kBand, height = min(kBand, down - first), in_band = rest - first * across;
    const GroupRows rows = rows_of_group<C::kMasked>(p, group);
    const int row = rows.first + (first + in_band % height) * kHeight + Tiles<C>::rank() * C::kRows;
    return {C::kMasked ? group : 0, row, in_band / height * C::kColumns, rows.stop, group};
  }
};

}  // namespace opfacade
