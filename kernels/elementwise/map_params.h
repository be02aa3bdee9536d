// Parameters of a map, shared by the kernels and their binding. Launch: CTAs of kMapThreads or fewer, of kTileThreads on the
// tile path; see csrc/elementwise/map.h for grids.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kMapAxes = 8, kMapThreads = 256, kTileThreads = 64;
constexpr int64_t kMapNarrow = int64_t{1} << 31;  // numbers below it are divided by a product

// n / extent for 32-bit n: a product and a shift.
struct MapDivider {
  uint32_t multiplier, shift;
};

// Axes are from the outermost to the innermost; operands are inputs, then outputs.
template <int kOperands, int kScalars>
struct MapParams {
  void* operand[kOperands];
  // All that a near map needs comes first: of a kernel that has just started, each further 64 bytes are fetched from memory.
  uint32_t row_step[kOperands], column_step[kOperands];  // elements from row to row, and from vector to vector
  uint32_t near;               // 1: one axis or two, all rows are valid, and steps fit 32 bits
  uint32_t each;               // vectors of a thread: 1, or all that the code has unrolled
  uint32_t band;               // rows of a thread are 2^band apart
  uint32_t lines, whole_ones;  // rows along axis rank - 2; vectors of a row without the one that ends within; all elements apart
  uint32_t vectors;            // of a row, rounded up; for tiles, the number of adjacent tiles; elements of a row apart
  MapDivider by_vectors;
  const int32_t* num_valid;  // null: all rows are valid; else they are counted along axis 0
  int64_t total;             // elements of a result
  int32_t rank;
  uint32_t wide;     // operands whose vectors are aligned
  uint32_t peels;    // 1 where vectors of a row begin at an aligned place of the first result, which may be before the row
  uint32_t transposed;  // operands that the tile path loads along axis rank - 2
  uint32_t shared;   // inputs that are the same in all rows of a thread
  uint32_t whole;    // 1 where each operand has aligned vectors, or is an input that lacks axes and has one element along a row
  uint32_t rows;     // first rows of a thread along axis rank - 2; of tiles, how many lie below each other
  MapDivider by_rows;
  uint32_t tile_at[kOperands];     // where the tile of an input that is transposed begins in shared memory
  int64_t extent[kMapAxes];
  MapDivider divider[kMapAxes];
  int64_t stride[kOperands][kMapAxes];  // in elements; 0 where the operand does not have the axis
  int64_t own[kOperands][kMapAxes];     // extents of an input that is read at computed positions
  int64_t span[kOperands];  // elements from the first one in memory to the last one
  uint64_t scalar[kScalars == 0 ? 1 : kScalars];
};

}  // namespace opfacade
