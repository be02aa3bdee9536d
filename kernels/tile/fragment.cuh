// Where a thread holds the elements of a fragment: of an accumulator of mma.sync or wgmma, or of an A operand, which packs two of
// them in a word. A warp has 16 rows of it.
//
// A thread has rows lane_row() and lane_row() + 8, and columns lane_column() and lane_column() + 1 of each block of eight columns.
// Element 4 * block + 2 * half + e is column 8 * block + lane_column() + e of row lane_row() + 8 * half.
#pragma once
#include "kernels/ptx/warpgroup.cuh"

namespace opfacade {

// This thread's first row and column.
__device__ __forceinline__ int lane_row() { return threadIdx.x % 32 / 4; }
__device__ __forceinline__ int lane_column() { return threadIdx.x % 4 * 2; }
// This thread's first row of the 64 rows of its warpgroup.
__device__ __forceinline__ int warpgroup_row() { return threadIdx.x % kWarpgroup / 32 * 16 + lane_row(); }
// Whether a thread is the first of the four that share its rows: it writes what is the same in all columns.
constexpr bool leads_row(uint32_t thread) { return thread % 4 == 0; }

// The row (0 or 1) of element i, and its column from lane_column() on.
constexpr int fragment_half(int i) { return i % 4 / 2; }
constexpr int fragment_column(int i) { return i / 4 * 8 + i % 2; }
// Element i of one row: its index in the fragment, and its column from lane_column() on.
constexpr int row_index(int half, int i) { return i / 2 * 4 + half * 2 + i % 2; }
constexpr int row_column(int i) { return i / 2 * 8 + i % 2; }
// The other way: the thread of four that has a column, and which element of a row it is there.
constexpr int column_thread(int column) { return column % 8 / 2; }
constexpr int column_element(int column) { return column / 8 * 2 + column % 2; }

}  // namespace opfacade
