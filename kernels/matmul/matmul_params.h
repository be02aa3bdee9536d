// Parameters of a product of matrices, shared by the kernel and its binding.
#pragma once
#include "kernels/ptx/tensor_map.h"

namespace opfacade {

// `rows` of an operand are those of x, or of the weight with one for each column of the product. Strides are in elements.
struct MatmulOperand {
  const void* data;
  int64_t row, k, batch;
};

// A tensor of the shape of out. pairs: two columns that begin with an even one are aligned; eights: also eight.
struct MatmulPlane {
  void* data;
  int64_t row, batch;
  int32_t pairs, eights;
};

// Scales of rows, or of columns of the product; `part`: of 128 elements of k. An axis that has none has a stride of 0.
struct MatmulScales {
  const void* data;
  int64_t row, part, batch;
};
constexpr int kMostStarts = 15;

// Boxes of 16 rows of results of 16 bits that each computing warp stores by TMA, from shared memory behind the stages.
struct Boxes {
  int32_t begin, columns, count;  // of shared memory, in bytes; of a box; of a warp
  constexpr int32_t bytes() const { return 16 * 2 * columns; }
};
// stage: its bytes, with those of factors; rows and columns: of a tile. As many as results have, or fit; narrow ones where two of 64 columns do not fit.
constexpr Boxes boxes_of(int32_t stages, int32_t stage, int32_t rows, int32_t columns) {
  constexpr int32_t kShared = 227 * 1024, kAligned = 1024;
  Boxes found{(stages * (stage + 16) + kAligned - 1) / kAligned * kAligned, columns % 64 == 0 ? 64 : 32, 0};
  if (columns > 64 && found.begin + 2 * (rows / 16 * found.bytes()) > kShared) found.columns = 32;
  const int32_t wanted = columns / found.columns, fit = (kShared - found.begin) / (rows / 16 * found.bytes());
  found.count = wanted < fit ? wanted : fit;
  return found;
}

struct MatmulParams {
  TensorMap x_map, weight_map, out_map;
  MatmulOperand x, weight;
  MatmulPlane out, add;
  const void* bias;
  const int32_t* num_valid;
  const int32_t* groups;  // indptr, or counts
  const int32_t* x_rows;  // the row of x that each row takes
  int32_t num_x_rows, x_wide;  // x_wide: chunks of 16 bytes of its rows are aligned
  uint64_t scalar[2];
  int32_t rows, columns, k, batch;  // columns of the product; with gates it has two for each of out
  int32_t x_box;   // rows of x that one load has; those of a tile behind them are any numbers
  int32_t mapped;  // TMA loads both operands; otherwise threads copy elements
  int32_t out_mapped;  // TMA can store boxes of results
  MatmulScales x_scale, weight_scale;
  int32_t segment;         // elements of k that are summed apart; a multiple of those of a stage
  int32_t offset_columns;        // of the first block of the weight that precede it
  int32_t starts[kMostStarts];  // columns at which another scale of the weight begins
  MatmulScales weight_zero;  // of groups of codes, as weight_scale
  const float* weight_global;  // the factor of a whole weight
  const int32_t* weight_groups;  // of num_groups, the group of each element of k
  int32_t num_groups;
  int32_t group_offset;      // elements of the first group that precede the weight
  int32_t weight_wide;       // sixteen bytes of codes are aligned
  const float* out_scale;    // of all results of 8 bits
  MatmulScales x_zero, weight_sum;  // i32: zero points of x, and the sums of the weight that they shift
};

}  // namespace opfacade
