// Parameters of a fold, shared by the kernels and their binding (csrc/reduction/fold.h).
#pragma once
#include "kernels/elementwise/map_params.h"

namespace opfacade {

// Axes are those of rows, then the folded ones, from the outermost to the innermost; operands are inputs, then outputs. A row
// is `segments` times `elements`, the latter along the axes that the last stages fold.
template <int kOperands, int kScalars>
struct FoldParams {
  void* operand[kOperands];
  const int32_t* num_valid;  // null: all rows are valid; else they are counted along axis 0
  int64_t rows;
  int32_t kept, rank;  // axes of rows, and all
  int32_t segments, elements;
  int32_t ctas;     // of a row that is cut into parts, at most as many as parts; or rows of a CTA that has them in shared memory
  int32_t aligned;  // 1 where vectors are whole and aligned, for kernels that do not know it before
  int64_t extent[kMapAxes];
  MapDivider divider[kMapAxes];
  int64_t stride[kOperands][kMapAxes];  // in elements; 0 where the operand does not have the axis
  int64_t own[kOperands][kMapAxes];     // extents of an input that is read at computed positions
  int64_t span[kOperands];              // elements from the first one in memory to the last one
  int64_t step[kOperands];              // from one segment to the next, where it is the same everywhere
  int64_t size[kMapAxes];               // extents of the axes of the program, in its order
  uint64_t scalar[kScalars == 0 ? 1 : kScalars];
};

}  // namespace opfacade
