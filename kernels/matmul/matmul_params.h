// Parameters of a matmul, shared by the kernel and its binding.
#pragma once
#include "kernels/ptx/tensor_map.h"

namespace opfacade {

// An operand. row: stride of the rows of x; for the weight, stride of the columns of the product. All strides are in elements.
struct MatmulOperand {
  const void* data;
  int64_t row, k, batch;
};

// A tensor with the shape of out. pairs: vectors of two columns are aligned if the first column is even. eights: vectors of
// eight columns are aligned if the first column is a multiple of eight.
struct MatmulPlane {
  void* data;
  int64_t row, batch;
  int32_t pairs, eights;
};

// Scales. row: stride of the rows of x or the columns of the product. part: stride of parts of 128 elements of k. The stride of
// an axis that scales do not have is 0.
struct MatmulScales {
  const void* data;
  int64_t row, part, batch;
};
constexpr int kMostStarts = 15;

// Boxes of 16 rows of 16-bit results, which each computing warp stores by TMA. They follow the stages in shared memory.
struct Boxes {
  int32_t begin, columns, count;  // byte offset of the first box; columns per box; boxes per warp
  constexpr int32_t bytes() const { return 16 * 2 * columns; }
};
// stage: bytes per stage, including scale factors. rows, columns: tile size. A box has 64 columns if that divides the tile's
// width and two such boxes fit in shared memory, else 32. count: boxes that the tile needs, limited by what fits.
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
  const int32_t* x_rows;  // index of the row of x for each row of the product
  int32_t num_x_rows, x_wide;  // x_wide: chunks of 16 bytes of x are aligned
  uint64_t scalar[2];
  int32_t rows, columns, k, batch;  // columns: columns of the product; a gated product has two per column of out
  int32_t x_box;   // rows of x per TMA load; later rows of a tile contain arbitrary numbers
  int32_t mapped;  // TMA loads both operands; otherwise threads copy elements
  int32_t out_mapped;  // TMA can store boxes of results
  MatmulScales x_scale, weight_scale;
  int32_t segment;         // elements of k per segment, which is summed separately; a multiple of the elements per stage
  int32_t offset_columns;        // columns of the first scale block that precede the weight
  int32_t starts[kMostStarts];  // columns at which the next scale of the weight begins
  MatmulScales weight_zero;  // zero points of groups of codes, indexed like weight_scale
  const float* weight_global;  // one scale for the whole weight
  const int32_t* weight_groups;  // group of each element of k, less than num_groups
  int32_t num_groups;
  int32_t group_offset;      // elements of the first group that precede the weight
  int32_t weight_wide;       // vectors of sixteen bytes of codes are aligned
  const float* out_scale;    // one scale for all 8-bit results
  MatmulScales x_zero, weight_sum;  // i32: zero points of x, and sums of the weight that are multiplied by them
};

}  // namespace opfacade
