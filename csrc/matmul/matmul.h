// Shared code of bindings of products: operands by their layouts, tensor maps and the launch.
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

// Axes of a tensor behind that of the batch; 0 without one.
inline int64_t batch_stride(const TensorView& of) { return of.ndim() > 2 ? of.stride(0) : 0; }

// across: the axis of k comes first.
inline MatmulOperand matmul_operand(const TensorView& of, bool across) {
  const int last = of.ndim() - 1, k = across ? last - 1 : last, row = across ? last : last - 1;
  return {data_of<const uint16_t>(of), of.stride(row), of.stride(k), batch_stride(of)};
}

// size: bytes of an element. An axis of one element may have any stride.
inline MatmulPlane matmul_plane(const TensorView& of, int64_t size, bool pairs) {
  const int last = of.ndim() - 1;
  const int64_t row = of.stride(last - 1), batch = batch_stride(of);
  const auto aligned = [&](int64_t columns) {
    const bool rows = row % columns == 0 && batch % columns == 0 && of.stride(last) == 1;
    return pairs && rows && reinterpret_cast<uintptr_t>(of.data_ptr()) % (columns * size) == 0;
  };
  return {of.data_ptr(), row, batch, aligned(2), aligned(8)};
}

// The map of an operand. across: its rows lie one behind the other, else its elements of k.
inline bool map_operand(TensorMap& map, const MatmulOperand& of, const MatmulParams& p, int64_t rows, int32_t box, bool across, MapElement element) {
  const int64_t line = across ? of.k : of.row, step = across ? of.row : of.k, size = across ? rows : p.k;
  if (size > 1 && step != 1) return false;
  return tensor_map(map, {of.data, {size, across ? p.k : rows, p.batch, 1, 1}, {line * 2, of.batch * 2, 0, 0}, {across ? 64 : box, 1, 1, 1}, element, 0});
}

// A tile may end behind the last row or column.
inline int32_t fits(int64_t size, const char* name) {
  if (size > INT32_MAX - 256) throw FfiError("ValueError") << name << " expected at most 2147483391, got " << size;
  return static_cast<int32_t>(size);
}

}  // namespace opfacade
