// What the bindings of an append share: new rows, pools and page table, checked and turned into what kernels read.
#pragma once
#include "csrc/common/launch.h"
#include "csrc/common/pool.h"
#include "kernels/kv_cache/append_params.h"

namespace opfacade {

inline NewRows new_rows(const TensorView& view) { return {view.data_ptr(), byte_stride(view, 0), byte_stride(view, 1)}; }

// Binds the shapes: k_data and v_data first, then the rows.
inline void set_rows_and_pools(Args& args, AppendParams& params, Dim& rows, PoolShape& pool, const TensorView& k_new,
                               const TensorView& v_new, const TensorView& k, const TensorView& v, int64_t token_axis,
                               int64_t head_dim, DLDataType row_dtype) {
  check_pool(args("k_data", k), pool, token_axis, head_dim);
  check_pool(args("v_data", v).dtype(k.dtype()), pool, token_axis, head_dim);
  args("k_new", k_new).shape({rows, pool.heads, head_dim}).dtype(row_dtype).last_contiguous();
  args("v_new", v_new).shape({rows, pool.heads, head_dim}).dtype(row_dtype).last_contiguous();
  params.k_new = new_rows(k_new);
  params.v_new = new_rows(v_new);
  params.k = pool_of(k, token_axis);
  params.v = pool_of(v, token_axis);
  params.aligned = aligned_16(k_new) && aligned_16(k) && aligned_16(v_new) && aligned_16(v);
}

// Heads are dealt out evenly; `head_bytes` of a new row.
inline Launch append_launch(AppendParams& params, int64_t rows, int64_t heads, int head_bytes) {
  const int64_t chunks = ceil_div(heads, heads_of_a_warp(head_bytes));
  const int64_t each = chunks > 0 ? ceil_div(heads, chunks) : 1;
  params.total_rows = static_cast<int32_t>(rows);
  params.kv_heads = static_cast<int32_t>(heads);
  params.heads_each = static_cast<int32_t>(each);
  return Launch(Dim3(ceil_div(rows, 4), ceil_div(heads, each)), 128);
}

}  // namespace opfacade
