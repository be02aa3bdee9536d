// Fills rows of out that belong to no group with zeros. Three warps of the producer store them while the others multiply.
#pragma once
#include "kernels/matmul/groups.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

// Clears the columns of one row. Called by a warp. Bits: storage type of an element.
template <class Bits>
__device__ __forceinline__ void clear_row(Bits* row, int columns) {
  constexpr int kEach = 16 / sizeof(Bits);
  const int lane = threadIdx.x % 32, over = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(Bits));
  const int first = min(columns, over == 0 ? 0 : kEach - over), vectors = (columns - first) / kEach;
  if (lane < first) row[lane] = 0;
  for (int i = lane; i < vectors; i += 32) store_vector(row + first + i * kEach, make_uint4(0, 0, 0, 0));
  for (int i = first + vectors * kEach + lane; i < columns; i += 32) row[i] = 0;
}

// Distributes rows to the warps of all CTAs in rotation, which continues from one range of rows to the next.
template <class C>
struct RestOfRows {
  using Bits = typename Stored<typename C::Program::Out>::Bits;
  const MatmulParams& p;
  int turn, warps;

  // Called by warps 1 to 3 of each CTA.
  __device__ __forceinline__ explicit RestOfRows(const MatmulParams& params)
      : p(params), turn(blockIdx.x * 3 + threadIdx.x / 32 - 1), warps(gridDim.x * 3) {}

  __device__ __forceinline__ void clear(int part, int first, int stop) {
    const int columns = p.columns / (C::kGated ? 2 : 1), count = max(stop - first, 0);
    Bits* out = static_cast<Bits*>(p.out.data) + part * p.out.batch;
    for (int i = turn; i < count; i += warps) clear_row(out + (first + i) * p.out.row, columns);
    turn -= count % warps;
    turn += turn < 0 ? warps : 0;
  }
  // Clears the rows after the valid rows of each group.
  __device__ __forceinline__ void clear_masked() {
    const int lane = threadIdx.x % 32;
    for (int base = 0; base < p.batch; base += 32) {
      const int own = base + lane < p.batch ? rows_of_group<true>(p, base + lane).stop : p.rows;
      const int count = min(32, p.batch - base);
      for (int i = 0; i < count; ++i) clear(base + i, __shfl_sync(0xffffffffu, own, i), p.rows);
    }
  }
  // Clears the rows before the first group and after the last one. There are no rows between groups, unless indptr decreases.
  __device__ __forceinline__ void clear_ragged() {
    int first = p.rows, stop = 0;
    for (int group = threadIdx.x % 32; group < p.batch; group += 32) {
      const GroupRows own = rows_of_group<false>(p, group);
      if (own.first < own.stop) first = min(first, own.first), stop = max(stop, own.stop);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      first = min(first, __shfl_xor_sync(0xffffffffu, first, step));
      stop = max(stop, __shfl_xor_sync(0xffffffffu, stop, step));
    }
    clear(0, 0, first), clear(0, max(first, stop), p.rows);
  }
};

// Called by the warps of the producer.
template <class C>
__device__ __forceinline__ void clear_rest(const MatmulParams& p) {
  if (threadIdx.x < 32) return;
  RestOfRows<C> rest(p);
  if constexpr (C::kMasked) rest.clear_masked(); else rest.clear_ragged();
}

}  // namespace opfacade
