// Parameters of a map, shared by the kernels and their binding. Launch: CTAs of kMapThreads or fewer, of kTileThreads on the
// tile path; see csrc/elementwise/map.h for grids.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kMapAxes = 8, kMapThreads = 256, kTileThreads = 64;
constexpr int64_t kMapNarrow = int64_t{1} << 31;  // dividends below it are divided by a multiplication

// n / extent for 32-bit n: a multiplication and a shift.
struct MapDivider {
  uint32_t multiplier, shift;
};

// Axes are from the outermost to the innermost; operands are inputs, then outputs.
template <int kOperands, int kScalars>
struct MapParams {
  void* operand[kOperands];
  // All fields that a near map needs come first: each further 64 bytes of a newly started kernel's parameters are fetched from
  // memory.
  uint32_t row_step[kOperands], column_step[kOperands];  // elements between rows, and between vectors
  uint32_t near;               // 1: one axis or two, all rows are valid, and steps fit 32 bits
  uint32_t each;               // vectors per thread: 1, or the number that the code unrolls
  uint32_t band;               // rows of a thread are 2^band apart
  uint32_t lines, whole_ones;  // rows along axis rank - 2; whole vectors per row; path `apart`: all elements
  uint32_t vectors;            // per row, rounded up; tiles: number of tiles along the row; `apart`: elements per row
  MapDivider by_vectors;
  const int32_t* num_valid;  // null: all rows are valid; else the number of valid rows along axis 0
  int64_t total;             // elements of a result
  int32_t rank;
  uint32_t wide;     // operands whose vectors are aligned, one bit each
  uint32_t peels;    // 1: vectors of a row begin at an aligned address of the first result, possibly before the row
  uint32_t transposed;  // operands that the tile path loads along axis rank - 2, one bit each
  uint32_t shared;   // inputs that are the same in all rows of a thread, one bit each
  uint32_t whole;    // 1 if each operand has aligned vectors, or is an input that lacks axes and has one element along a row
  uint32_t rows;     // rows along axis rank - 2 that are the first of a thread; tiles: number of tiles along that axis
  MapDivider by_rows;
  uint32_t tile_at[kOperands];     // start of the tile of a transposed input in shared memory
  int64_t extent[kMapAxes];
  MapDivider divider[kMapAxes];
  int64_t stride[kOperands][kMapAxes];  // in elements; 0 if the operand does not have the axis
  int64_t own[kOperands][kMapAxes];     // extents of an input that is read at computed positions
  int64_t span[kOperands];  // elements from the first to the last one in memory
  uint64_t scalar[kScalars == 0 ? 1 : kScalars];
};

}  // namespace opfacade
