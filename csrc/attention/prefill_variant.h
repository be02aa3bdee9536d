// Operands of a variant and of a packed mask, checked and put where kernels/attention/prefill_variant_params.h says. C names
// how many parameters of each kind there are.
#pragma once
#include "csrc/attention/prefill.h"
#include "kernels/attention/prefill_variant_params.h"

namespace opfacade {

template <class C>
void set_head_params(Args& args, VariantOperands& operands, const TensorView& params, PrefillShape& shape) {
  args("head_params", params).shape({C::kHeadParams, shape.heads}).dtype(kF32).contiguous();
  operands.head = data_of<float>(params);
}

template <class C>
void set_row_params(Args& args, VariantOperands& operands, const TensorView& params, PrefillShape& shape) {
  args("row_params", params).shape({C::kRowParams, shape.rows}).dtype(kI32).contiguous();
  operands.row = data_of<int32_t>(params);
}

template <class C>
void set_paged_key_params(Args& args, VariantOperands& operands, const TensorView& params, PoolShape& pool) {
  args("key_params", params).shape({C::kKeyParams, pool.pages, pool.page_size}).dtype(kI32).contiguous();
  operands.key = data_of<int32_t>(params);
  operands.key_count = pool.pages * pool.page_size;
  operands.key_page = pool.page_size;
}

template <class C>
void set_ragged_key_params(Args& args, VariantOperands& operands, const TensorView& params, Dim& kv_rows) {
  args("key_params", params).shape({C::kKeyParams, kv_rows}).dtype(kI32).contiguous();
  operands.key = data_of<int32_t>(params);
  operands.key_count = kv_rows;
}

inline void set_packed_mask(Args& args, VariantOperands& operands, const TensorView& mask, const TensorView& indptr,
                            PrefillShape& shape) {
  args("packed_mask", mask).shape({kAny}).dtype(kU8).contiguous().aligned(4);
  args("mask_indptr", indptr).shape({shape.bounds}).dtype(kI32).contiguous();
  operands.mask = data_of<uint8_t>(mask);
  operands.mask_indptr = data_of<int32_t>(indptr);
  operands.mask_bytes = mask.size(0);
}

}  // namespace opfacade
