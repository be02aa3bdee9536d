// Parameters of a map, shared by the kernels and their binding. Launch: blocks of 256 threads; see csrc/elementwise/map.h for grids.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kMapAxes = 8, kMapThreads = 256;

// n / extent for 32-bit n: a product and a shift.
struct MapDivider {
  uint32_t multiplier, shift;
};

// Axes are from the outermost to the innermost; operands are inputs, then outputs.
template <int kOperands, int kScalars>
struct MapParams {
  void* operand[kOperands];
  const int32_t* num_valid;  // null: all rows are valid; else they are counted along axis 0
  int64_t total;             // elements of a result
  int32_t rank;
  uint32_t wide;     // operands whose vectors are aligned
  uint32_t turned;   // operands that the tile path loads along axis rank - 2
  uint32_t vectors;  // of a row, rounded up
  MapDivider by_vectors;
  int64_t extent[kMapAxes];
  MapDivider divider[kMapAxes];
  int64_t stride[kOperands][kMapAxes];  // in elements; 0 where the operand does not have the axis
  int64_t own[kOperands][kMapAxes];     // extents of an input that is read at computed places
  uint64_t scalar[kScalars == 0 ? 1 : kScalars];
};

}  // namespace opfacade
