// Shared code of matmul bindings: operands and their layouts, tensor maps, and the launch.
#pragma once
#include "csrc/common/launch.h"
#include "csrc/common/operands.h"
#include "csrc/common/tensor_map.h"
#include "kernels/matmul/matmul_params.h"

namespace opfacade {

inline uint64_t bits_of_f32(double value) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  __builtin_memcpy(&bits, &single, 4);
  return bits;
}

// Stride of the batch axis, which comes first; 0 if there is none.
inline int64_t batch_stride(const TensorView& of) { return of.ndim() > 2 ? of.stride(0) : 0; }

// across: the axis of k precedes that of rows.
inline MatmulOperand matmul_operand(const TensorView& of, bool across) {
  const int last = of.ndim() - 1, k = across ? last - 1 : last, row = across ? last : last - 1;
  return {of.data_ptr(), of.stride(row), of.stride(k), batch_stride(of)};
}

// Axes of scales: one scale for all rows; ranges of columns; rows; rows and parts of k; parts of k and rows. The last three may
// follow a batch axis.
enum class ScaleAxes { kOne, kRanges, kRows, kRowsParts, kPartsRows };

inline MatmulScales matmul_scales(const TensorView& of, ScaleAxes axes) {
  if (axes == ScaleAxes::kOne) return {of.data_ptr(), 0, 0, 0};
  const int parts = axes == ScaleAxes::kRowsParts || axes == ScaleAxes::kPartsRows, first = of.ndim() - 1 - parts;
  const int64_t batch = first > 0 ? of.stride(0) : 0;
  if (parts == 0) return {of.data_ptr(), of.stride(first), 0, batch};
  const int row = axes == ScaleAxes::kRowsParts ? first : first + 1, part = axes == ScaleAxes::kRowsParts ? first + 1 : first;
  return {of.data_ptr(), of.stride(row), of.stride(part), batch};
}

// An axis of one element may have any stride; its stride is rounded up to a multiple of 8, so that vectors count as aligned.
inline int64_t stride_of(const TensorView& of, int axis, int64_t own) { return of.size(axis) > 1 ? own : ceil_div(own, 8) * 8; }

// size: bytes per element. An axis of one element may have any stride.
inline MatmulPlane matmul_plane(const TensorView& of, int64_t size, bool pairs) {
  const int last = of.ndim() - 1;
  const int64_t row = stride_of(of, last - 1, of.stride(last - 1)), batch = last > 1 ? stride_of(of, 0, of.stride(0)) : 0;
  const auto aligned = [&](int64_t columns) {
    const bool rows = row % columns == 0 && batch % columns == 0 && of.stride(last) == 1;
    return pairs && rows && reinterpret_cast<uintptr_t>(of.data_ptr()) % (columns * size) == 0;
  };
  return {of.data_ptr(), row, batch, aligned(2), aligned(8)};
}

// Encodes the tensor map of an operand; false if TMA cannot load it. across: consecutive rows are contiguous, otherwise
// consecutive elements of k are.
inline bool map_operand(TensorMap& map, const MatmulOperand& of, const MatmulParams& p, int64_t rows, int32_t box, bool across, MapElement element) {
  const int64_t line = across ? of.k : of.row, step = across ? of.row : of.k, size = across ? rows : p.k;
  const int64_t bytes = element == MapElement::kByte ? 1 : 2;
  if (size > 1 && step != 1) return false;
  return tensor_map(map, {of.data, {size, across ? p.k : rows, p.batch, 1, 1}, {line * bytes, of.batch * bytes, 0, 0}, {across ? 64 : box, 1, 1, 1}, element, 0});
}

// Encodes the tensor map of 4-bit codes, two per byte. A box has 256 codes (128 bytes) of each of `columns` columns.
inline bool map_codes(TensorMap& map, const MatmulParams& p, int32_t columns) {
  if (p.weight.k != 1) return false;
  return tensor_map(map, {p.weight.data, {p.k / 2, p.columns, p.batch, 1, 1}, {p.weight.row, p.weight.batch, 0, 0}, {columns, 1, 1, 1}, MapElement::kByte, 0});
}

// Whether chunks of 16 bytes of an operand are aligned and k is a multiple of a chunk. bits: bits per element.
inline bool chunks_fit(const MatmulOperand& of, int32_t k, int32_t bits) {
  const int64_t size = bits == 16 ? 2 : 1;
  const bool strides = of.k == 1 && of.row * size % 16 == 0 && of.batch * size % 16 == 0;
  return strides && k % (128 / bits) == 0 && reinterpret_cast<uintptr_t>(of.data) % 16 == 0;
}

// Bytes of shared memory for stages, their barriers, and the boxes of all warps, which come last
// (kernels/matmul/staged_rows.cuh).
constexpr int32_t shared_with_boxes(const Boxes& of, int32_t rows) { return of.begin + rows / 16 * of.count * of.bytes(); }

// Encodes the tensor map that stores 16-bit results in boxes of 16 rows.
inline bool map_results(TensorMap& map, const MatmulParams& p, const Boxes& of) {
  if (p.out.eights == 0) return false;
  const int32_t narrow = of.columns < 64;
  return tensor_map(map, {p.out.data, {p.columns, p.rows, p.batch, 1, 1}, {p.out.row * 2, p.out.batch * 2, 0, 0}, {16, 1, 1, 1}, MapElement::kBf16, 0, narrow});
}

// Narrows a size to 32 bits. The margin of 256 lets a tile end after the last row or column without overflow.
inline int32_t fits(int64_t size, const char* name) {
  if (size > INT32_MAX - 256) throw FfiError("ValueError") << name << " expected at most 2147483391, got " << size;
  return static_cast<int32_t>(size);
}

inline void set_sizes(MatmulParams& p, const TensorView& x, const TensorView& weight, bool x_across, bool weight_across) {
  const int last = x.ndim() - 1;
  p.rows = fits(x.size(x_across ? last : last - 1), "total_num_rows");
  p.k = fits(x.size(x_across ? last - 1 : last), "k");
  p.columns = fits(weight.size(weight_across ? last : last - 1), "n");
  p.batch = fits(x.ndim() > 2 ? x.size(0) : 1, "batch");
}

}  // namespace opfacade
