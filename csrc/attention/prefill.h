// The part of a prefill binding that paged and ragged share. C names the compile-time constants of the kernel.
#pragma once
#include "csrc/attention/attention.h"
#include "kernels/attention/prefill_params.h"

namespace opfacade {

struct PrefillShape {
  Dim rows{"total_num_rows"};
  Dim heads{"num_qo_heads"};
  Dim bounds{"batch_size+1"};
};

// Checks and sets all but K, V and the page table.
template <class C>
void set_queries(Args& args, PrefillParams& params, PrefillShape& shape, const TensorView& q, const TensorView& q_indptr,
                 const TensorView& o) {
  args("q", q).shape({shape.rows, shape.heads, C::kHeadDim}).dtype(C::kDType).last_contiguous();
  args("o", o).shape({shape.rows, shape.heads, C::kHeadDimVo}).dtype(C::kOutDType).last_contiguous();
  args("q_indptr", q_indptr).shape({shape.bounds}).dtype(kI32).contiguous();
  require(shape.bounds > 0, "q_indptr expected batch_size + 1 elements");
  set_rows(params, q, o);
  params.q_indptr = data_of<int32_t>(q_indptr);
  params.batch = static_cast<int32_t>(shape.bounds - 1);
  params.total_rows = static_cast<int32_t>(shape.rows);
  params.heads = static_cast<int32_t>(shape.heads);
}

inline void set_lse(Args& args, PrefillParams& params, PrefillShape& shape, const TensorView& lse) {
  args("lse", lse).shape({shape.rows, shape.heads}).dtype(kF32).contiguous();
  params.lse = data_of<float>(lse);
}

inline void set_sinks(Args& args, PrefillParams& params, PrefillShape& shape, const TensorView& sinks) {
  args("sinks", sinks).shape({shape.heads}).dtype(kF32).contiguous();
  params.sinks = data_of<float>(sinks);
}

// num_splits and chunk come from the plan: see kernels/attention/prefill_params.h.
inline void set_splits(PrefillParams& params, int64_t num_splits, int64_t chunk) {
  require(num_splits > 0, "num_splits expected at least 1");
  params.num_splits = bounded(num_splits);
  params.chunk = bounded(chunk);
}

inline void set_workspace(Args& args, PrefillParams& params, const TensorView& workspace, int64_t head_dim_vo) {
  const int64_t slots = int64_t{params.num_splits} * params.total_rows * params.heads;
  set_partials(args, params, workspace, slots, head_dim_vo, 0);
}

// more_shared: bytes behind what every prefill has.
template <class C>
Launch prefill_launch(const PrefillParams& params, int64_t more_shared = 0) {
  const Dim3 grid(int64_t{params.total_rows} * C::kGroup / C::kTileRows + params.batch, params.heads / C::kGroup,
                  params.num_splits);
  constexpr int64_t kRaw = C::kKvBytes == 1 ? C::kTileKv * C::kHeadDim + C::kTileRows * 4 : 0;
  constexpr int64_t kShared = (C::kTileRows + 2 * C::kTileKv) * C::kHeadDim * 2 + 4 * C::kTileKv * 8 + 1024 + kRaw;
  return Launch(grid, C::kWarps * 32).shared(kShared + more_shared);
}

// Four warps a block, one row each.
inline Launch merge_launch(const PrefillParams& params) {
  return Launch(ceil_div(int64_t{params.total_rows} * params.heads, 4), 128);
}

}  // namespace opfacade
