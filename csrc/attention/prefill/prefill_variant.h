// Operands of a variant and of a packed mask, stored as in kernels/attention/prefill/variant_params.h.
#pragma once
#include "csrc/attention/prefill/prefill.h"
#include "kernels/attention/prefill/variant_params.h"

namespace opfacade {

// key_params of `keys` keys, or of pages of keys.
inline void set_ragged_key_params(VariantOperands& operands, const TensorView& params, int64_t keys) {
  operands.key = data_of<int32_t>(params);
  operands.key_count = keys;
}

inline void set_paged_key_params(VariantOperands& operands, const TensorView& params, const PoolShape& pool) {
  set_ragged_key_params(operands, params, pool.pages * pool.page_size);
  operands.key_page = pool.page_size;
}

inline void set_packed_mask(VariantOperands& operands, Operands& in) {
  const TensorView mask = in.tensor();
  operands.mask = data_of<uint8_t>(mask);
  operands.mask_bytes = mask.size(0);
  operands.mask_indptr = in.data<int32_t>();
}

}  // namespace opfacade
