// Additional parameters of a prefill with a variant or a mask; the kernel and its binding share them.
#pragma once
#include "kernels/attention/prefill/params.h"

namespace opfacade {

// Operands of opfacade.plans._attention.variant.Variant and of a packed mask. A pointer that the specialisation does not use is null.
struct VariantOperands {
  const float* head;           // [n, heads]
  const int32_t* row;          // [n, total_rows]
  const int32_t* key;          // [n, pages, page_size], or [n, rows of k]
  int64_t key_count;           // number of elements of each of the n parameters
  int64_t key_page;            // elements per page; 0 if ragged
  const uint8_t* mask;         // 4-byte aligned
  const int32_t* mask_indptr;  // [batch + 1], in bytes
  int64_t mask_bytes;
};

struct VariedPrefillParams : PrefillParams {
  VariantOperands variant;
};

}  // namespace opfacade
