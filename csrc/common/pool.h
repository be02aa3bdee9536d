// Page pools and page tables as operands of a binding: held to their shapes, and turned into what kernels read.
// Code C030: a value that no tensor carries, or that two tensors must agree on.
#pragma once
#include "csrc/common/tensor.h"
#include "kernels/common/paged_kv.h"

namespace opfacade {

// Shape of a pool: bound by k, compared with v and everything else.
struct PoolShape {
  Dim pages{"num_total_pages"};
  Dim heads{"num_kv_heads"};
  Dim page_size{"page_size"};
};

template <class T>
T* data_of(const TensorView& view) {
  return static_cast<T*>(view.data_ptr());
}

inline int element_bytes(const TensorView& view) { return (view.dtype().bits * view.dtype().lanes + 7) / 8; }

// The stride of an axis that is never stepped along is free to be anything, so it counts as zero.
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

// Checks k or v; token_axis is 2 for HND and 1 for NHD.
inline void check_pool(const Arg& arg, PoolShape& shape, int64_t token_axis, int64_t head_dim) {
  require(token_axis == 1 || token_axis == 2, "token_axis expected 1 (NHD) or 2 (HND)");
  Dim& second = token_axis == 2 ? shape.heads : shape.page_size;
  Dim& third = token_axis == 2 ? shape.page_size : shape.heads;
  arg.shape({shape.pages, second, third, head_dim}).last_contiguous();
}

inline PoolTensor pool_of(const TensorView& view, int64_t token_axis) {
  const int token = static_cast<int>(token_axis);
  return {view.data_ptr(), byte_stride(view, 0), byte_stride(view, token), byte_stride(view, 3 - token)};
}

// Ragged [rows, heads, dim]: one page.
inline PoolTensor ragged_pool_of(const TensorView& view) {
  return {view.data_ptr(), 0, byte_stride(view, 0), byte_stride(view, 1)};
}

inline void set_page_size(PageTable& table, const PoolShape& shape) {
  require(shape.page_size > 0 && shape.page_size <= INT32_MAX, "page_size expected 1 to 2^31 - 1");
  table.page_size = static_cast<int32_t>(shape.page_size);
  table.page_shift = __builtin_ctz(static_cast<unsigned>(table.page_size));
  table.num_pages = static_cast<int32_t>(shape.pages);
}

// The greatest length or entry of indptr that a kernel uses; 0 for an empty pool, so that nothing of it is read.
inline void set_limit(PageTable& table, int64_t limit, int64_t pages_or_rows) {
  table.limit = pages_or_rows == 0 ? 0 : static_cast<int32_t>(limit < INT32_MAX ? limit : INT32_MAX);
}

inline PageTable csr_table(Args& args, const TensorView& indptr, const TensorView& indices,
                           const TensorView& last_page_len, Dim& batch, const PoolShape& shape) {
  args("last_page_len", last_page_len).shape({batch}).dtype(kI32).contiguous();
  args("kv_indptr", indptr).shape({batch + 1}).dtype(kI32).contiguous();
  args("kv_indices", indices).shape({kAny}).dtype(kI32).contiguous();
  PageTable table{};
  table.indptr = data_of<int32_t>(indptr);
  table.indices = data_of<int32_t>(indices);
  table.lens = data_of<int32_t>(last_page_len);
  set_page_size(table, shape);
  set_limit(table, indices.size(0), shape.pages);
  return table;
}

inline PageTable block_table_of(Args& args, const TensorView& block_table, const TensorView& kv_lens, Dim& batch,
                                const PoolShape& shape) {
  args("kv_lens", kv_lens).shape({batch}).dtype(kI32).contiguous();
  args("block_table", block_table).shape({batch, kAny}).dtype(kI32).last_contiguous();
  PageTable table{};
  table.indices = data_of<int32_t>(block_table);
  table.lens = data_of<int32_t>(kv_lens);
  table.row_stride = batch > 1 ? block_table.stride(0) : 0;
  set_page_size(table, shape);
  set_limit(table, block_table.size(1) < INT32_MAX ? block_table.size(1) * table.page_size : INT32_MAX, shape.pages);
  return table;
}

inline PageTable ragged_table(const TensorView& indptr, int64_t rows) {
  PageTable table{};
  table.indptr = data_of<int32_t>(indptr);
  table.page_size = 1;
  set_limit(table, rows, rows);
  return table;
}

}  // namespace opfacade
