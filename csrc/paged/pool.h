// Converts page pools and page tables from operands of a binding to kernel parameters. Code C030: a wrong scalar, or a value in
// which two tensors must agree.
#pragma once
#include "csrc/common/operands.h"
#include "kernels/paged/paged_kv.h"

namespace opfacade {

inline int element_bytes(const TensorView& view) { return (view.dtype().bits * view.dtype().lanes + 7) / 8; }

// The stride of an axis of size 1 may have any value, so it counts as zero.
inline int64_t byte_stride(const TensorView& view, int axis) {
  return view.size(axis) > 1 ? view.stride(axis) * element_bytes(view) : 0;
}

// Whether rows of the last axis can be read 16 bytes at a time.
inline bool aligned_16(const TensorView& view) {
  int64_t bits = reinterpret_cast<int64_t>(view.data_ptr());
  for (int axis = 0; axis + 1 < view.ndim(); ++axis) bits |= byte_stride(view, axis);
  return bits % 16 == 0;
}

[[noreturn, gnu::cold, gnu::noinline]] inline void refuse(const char* message) {
  throw FfiError("ValueError") << message << ". [OPF-C030]";
}

inline void require(bool holds, const char* message) {
  if (__builtin_expect(!holds, 0)) refuse(message);
}

struct PoolShape {
  int64_t pages, heads, page_size;
};

// token_axis: 2 for HND, 1 for NHD.
inline PoolShape shape_of(const TensorView& pool, int64_t token_axis) {
  require(token_axis == 1 || token_axis == 2, "token_axis expected 1 (NHD) or 2 (HND)");
  const int token = static_cast<int>(token_axis);
  return {pool.size(0), pool.size(3 - token), pool.size(token)};
}

inline PoolTensor pool_of(const TensorView& view, int64_t token_axis) {
  const int token = static_cast<int>(token_axis);
  return {view.data_ptr(), byte_stride(view, 0), byte_stride(view, token), byte_stride(view, 3 - token)};
}

// Ragged [rows, heads, dim]: one page.
inline PoolTensor ragged_pool_of(const TensorView& view) {
  return {view.data_ptr(), 0, byte_stride(view, 0), byte_stride(view, 1)};
}

inline PageTable page_table(const PoolShape& shape) {
  require(shape.page_size > 0 && shape.page_size <= INT32_MAX, "page_size expected 1 to 2^31 - 1");
  PageTable table{};
  table.page_size = static_cast<int32_t>(shape.page_size);
  table.page_shift = __builtin_ctz(static_cast<unsigned>(table.page_size));
  table.num_pages = static_cast<int32_t>(shape.pages);
  return table;
}

// The maximum length or indptr entry that a kernel uses; 0 for an empty pool, so that the pool is not read.
inline void set_limit(PageTable& table, int64_t limit, int64_t pages_or_rows) {
  table.limit = pages_or_rows == 0 ? 0 : static_cast<int32_t>(limit < INT32_MAX ? limit : INT32_MAX);
}

// The operands of a page table: indptr, indices and last page lengths, or a block table and lengths.
struct CsrOperands {
  explicit CsrOperands(Operands& in) : indptr(in.tensor()), indices(in.tensor()), lens(in.tensor()) {}
  PageTable table(const PoolShape& shape) const {
    PageTable table = page_table(shape);
    table.indptr = data_of<int32_t>(indptr);
    table.indices = data_of<int32_t>(indices);
    table.lens = data_of<int32_t>(lens);
    set_limit(table, indices.size(0), shape.pages);
    return table;
  }
  const TensorView indptr, indices, lens;
};

struct BlockTableOperands {
  explicit BlockTableOperands(Operands& in) : indices(in.tensor()), lens(in.tensor()) {}
  PageTable table(const PoolShape& shape) const {
    PageTable table = page_table(shape);
    table.indices = data_of<int32_t>(indices);
    table.lens = data_of<int32_t>(lens);
    table.row_stride = indices.size(0) > 1 ? indices.stride(0) : 0;
    set_limit(table, indices.size(1) < INT32_MAX ? indices.size(1) * table.page_size : INT32_MAX, shape.pages);
    return table;
  }
  const TensorView indices, lens;
};

inline PageTable ragged_table(const TensorView& indptr, int64_t rows) {
  PageTable table{};
  table.indptr = data_of<int32_t>(indptr);
  table.page_size = 1;
  set_limit(table, rows, rows);
  return table;
}

}  // namespace opfacade
