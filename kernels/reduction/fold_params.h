// Parameters of a fold, shared by the kernels and their binding (csrc/reduction/fold.h).
#pragma once
#include "kernels/elementwise/map_params.h"

namespace opfacade {

constexpr int kStateBytes = 32;  // slot of one state in shared memory

// Axes: those of rows, then the folded ones, both from the outermost to the innermost. Operands: inputs, then outputs. A row
// has `segments` * `elements` elements; `elements` counts along the axes that the last stages fold.
template <int kOperands, int kScalars>
struct FoldParams {
  void* operand[kOperands];
  const int32_t* num_valid;  // null: all rows are valid; otherwise the number of valid entries of axis 0
  int64_t rows;
  int32_t kept, rank;  // number of row axes, and of all axes
  int32_t segments, elements;
  int32_t ctas;     // if rows are cut into parts: CTAs per row, at most one per part; in flat.cuh: rows per CTA
  int32_t aligned;  // 1 if vectors are whole and aligned; kernels with Lie::kNear read it
  int64_t extent[kMapAxes];
  MapDivider divider[kMapAxes];
  int64_t stride[kOperands][kMapAxes];  // in elements; 0 along axes that the operand lacks
  int64_t own[kOperands][kMapAxes];     // extents of an input that is read at computed indices
  int64_t span[kOperands];              // number of elements from the first one in memory to the last one
  int64_t step[kOperands];              // between segments; in columns and ragged rows, between folded elements
  int64_t size[kMapAxes];               // extents of the axes of the program, in its order
  uint64_t scalar[kScalars == 0 ? 1 : kScalars];
};

}  // namespace opfacade
