// Parameters of the value check of one integer operand; shared by the kernel and its binding.
// Launch: one CTA of kValueThreads threads.
#pragma once
#include "kernels/validation/index_check_params.h"

namespace opfacade {

constexpr int kValueThreads = 1024;
constexpr int kValueRank = 6;
constexpr int16_t kOutside = 11;  // the rule of a record of this check; see opfacade/validation/values.py

// Each value is at least `first` and below `stop`. Rows are the entries of one axis; rows from *valid on are not read.
struct BoundedOperand {
  const void* from;
  void* safe;            // contiguous copy in which `first` replaces each wrong or invalid value; null: none
  const int32_t* valid;  // null: all rows are valid
  int64_t first, stop;
  int64_t elements;
  int64_t rows, row_elements;  // axis of rows: its size, and elements between its entries in logical order
  int64_t size[kValueRank], stride[kValueRank];  // in elements
  int32_t rank, bytes;
  bool is_signed;
};

struct ValueCheckParams {
  BoundedOperand operand;
  int32_t place;  // index of the operand in the plan
  IndexState* state;
  IndexRing* ring;
};

}  // namespace opfacade
