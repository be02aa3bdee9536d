// Shared by the append bindings: sets the kernel parameters from new rows and pools.
#pragma once
#include "csrc/common/launch.h"
#include "csrc/paged/pool.h"
#include "kernels/kv_cache/append_params.h"

namespace opfacade {

inline NewRows new_rows(const TensorView& view) { return {view.data_ptr(), byte_stride(view, 0), byte_stride(view, 1)}; }

// The first operands of an append: k_new, v_new, append_indptr, k_data and v_data.
struct AppendOperands {
  explicit AppendOperands(Operands& in)
      : k_new(in.tensor()), v_new(in.tensor()), append_indptr(in.tensor()), k(in.tensor()), v(in.tensor()) {}

  int64_t rows() const { return k_new.size(0); }
  void set(AppendParams& params, int64_t token_axis) const {
    params.k_new = new_rows(k_new);
    params.v_new = new_rows(v_new);
    params.k = pool_of(k, token_axis);
    params.v = pool_of(v, token_axis);
    params.aligned = aligned_16(k_new) && aligned_16(k) && aligned_16(v_new) && aligned_16(v);
    params.append_indptr = data_of<int32_t>(append_indptr);
    params.batch = static_cast<int32_t>(append_indptr.size(0) - 1);
  }

  const TensorView k_new, v_new, append_indptr, k, v;
};

// Distributes heads evenly over warps. head_bytes: bytes per head of a new row.
inline Launch append_launch(AppendParams& params, int64_t rows, int64_t heads, int head_bytes) {
  const int64_t chunks = ceil_div(heads, heads_of_a_warp(head_bytes));
  const int64_t each = chunks > 0 ? ceil_div(heads, chunks) : 1;
  params.total_rows = static_cast<int32_t>(rows);
  params.kv_heads = static_cast<int32_t>(heads);
  params.heads_each = static_cast<int32_t>(each);
  return Launch(Dim3(ceil_div(rows, 4), ceil_div(heads, each)), 128);
}

}  // namespace opfacade
