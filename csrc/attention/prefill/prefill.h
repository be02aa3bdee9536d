// Shared code of the paged and ragged prefill bindings. C names the compile-time constants of the kernel.
#pragma once
#include "csrc/attention/attention.h"
#include "kernels/attention/prefill/params.h"

namespace opfacade {

// The first operands of a prefill: q, q_indptr, k and v.
struct PrefillOperands {
  explicit PrefillOperands(Operands& in) : q(in.tensor()), q_indptr(in.tensor()), k(in.tensor()), v(in.tensor()) {}

  // All operands but K, V and the page table.
  void set_queries(PrefillParams& params, const TensorView& o) const {
    set_rows(params, q, o);
    params.q_indptr = data_of<int32_t>(q_indptr);
    params.batch = static_cast<int32_t>(q_indptr.size(0) - 1);
    params.total_rows = static_cast<int32_t>(q.size(0));
    params.heads = static_cast<int32_t>(q.size(1));
    params.kv_aligned = aligned_16(k) && aligned_16(v);
  }
  PoolShape set_paged(PrefillParams& params, int64_t token_axis) const {
    params.k = pool_of(k, token_axis);
    params.v = pool_of(v, token_axis);
    return shape_of(k, token_axis);
  }
  void set_ragged(PrefillParams& params, const TensorView& kv_indptr) const {
    params.k = ragged_pool_of(k);
    params.v = ragged_pool_of(v);
    params.table = ragged_table(kv_indptr, k.size(0));
  }

  const TensorView q, q_indptr, k, v;
};

inline void require_group(const PrefillParams& params, int64_t kv_heads, int64_t group) {
  require(kv_heads * group == params.heads, "num_qo_heads expected num_kv_heads times the group of this kernel");
}

// num_splits and chunk come from the plan: see kernels/attention/prefill/params.h.
inline void set_splits(PrefillParams& params, Operands& in) {
  const int64_t num_splits = in.integer(), chunk = in.integer();
  require(num_splits > 0, "num_splits expected at least 1");
  params.num_splits = bounded(num_splits);
  params.chunk = bounded(chunk);
}

inline void set_workspace(PrefillParams& params, void* workspace, int64_t head_dim_vo) {
  set_partials(params, workspace, int64_t{params.num_splits} * params.total_rows * params.heads, head_dim_vo);
}

// more_shared: shared memory bytes in addition to those of every prefill.
template <class C>
Launch prefill_launch(const PrefillParams& params, int64_t more_shared = 0) {
  const Dim3 grid(int64_t{params.total_rows} * C::kGroup / C::kTileRows + params.batch, params.heads / C::kGroup,
                  params.num_splits);
  constexpr int64_t kRaw = C::kKvBytes == 1 ? C::kTileKv * C::kHeadDim + C::kTileRows * 4 : 0;
  constexpr int64_t kShared = (C::kTileRows + 2 * C::kTileKv) * C::kHeadDim * 2 + 4 * C::kTileKv * 8 + 1024 + kRaw;
  return Launch(grid, C::kWarps * 32).shared(kShared + more_shared);
}

// Four warps per CTA, one row each.
inline Launch merge_launch(const PrefillParams& params) {
  return Launch(ceil_div(int64_t{params.total_rows} * params.heads, 4), 128);
}

}  // namespace opfacade
