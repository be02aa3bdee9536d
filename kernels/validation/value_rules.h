// Finds a value of an operand that is out of bounds, and writes a corrected copy. Plain C++ over a Block (lanes and a minimum),
// so that a test runs the same code on the host with a block of one.
#pragma once
#include "kernels/validation/value_check_params.h"

#ifndef OPF_DEVICE
#define OPF_DEVICE __device__ __forceinline__
#endif

namespace opfacade {

// Position in logical order, -1 if all values are valid, and the value at this position.
struct OutsideValue {
  int64_t position;
  int64_t value;
};

OPF_DEVICE int64_t offset_of(const BoundedOperand& o, int64_t position) {
  int64_t offset = 0;
  for (int axis = o.rank - 1; axis >= 0; --axis) {
    offset += position % o.size[axis] * o.stride[axis];
    position /= o.size[axis];
  }
  return offset;
}

template <class Signed, class Unsigned>
OPF_DEVICE int64_t load_as(const BoundedOperand& o, int64_t at) {
  if (o.is_signed) return static_cast<const Signed*>(o.from)[at];
  return static_cast<const Unsigned*>(o.from)[at];
}

// A uint64 above the largest int64 is treated as the largest int64.
OPF_DEVICE int64_t load_value(const BoundedOperand& o, int64_t at) {
  switch (o.bytes) {
    case 1: return load_as<int8_t, uint8_t>(o, at);
    case 2: return load_as<int16_t, uint16_t>(o, at);
    case 4: return load_as<int32_t, uint32_t>(o, at);
    default: {
      const int64_t value = static_cast<const int64_t*>(o.from)[at];
      return value < 0 && !o.is_signed ? INT64_MAX : value;
    }
  }
}

OPF_DEVICE void store_value(const BoundedOperand& o, int64_t at, int64_t value) {
  switch (o.bytes) {
    case 1: static_cast<int8_t*>(o.safe)[at] = static_cast<int8_t>(value); break;
    case 2: static_cast<int16_t*>(o.safe)[at] = static_cast<int16_t>(value); break;
    case 4: static_cast<int32_t*>(o.safe)[at] = static_cast<int32_t>(value); break;
    default: static_cast<int64_t*>(o.safe)[at] = value;
  }
}

// Number of valid rows: 0 if the count itself is wrong. Without a count all elements are valid.
OPF_DEVICE int64_t valid_rows(const BoundedOperand& o) {
  if (o.valid == nullptr) return INT64_MAX;
  return *o.valid >= 0 && *o.valid <= o.rows ? *o.valid : 0;
}

OPF_DEVICE bool is_valid(const BoundedOperand& o, int64_t position, int64_t rows) {
  return o.valid == nullptr || position / o.row_elements % o.rows < rows;
}

template <class Block>
OPF_DEVICE OutsideValue check_values(const BoundedOperand& o) {
  const int64_t rows = valid_rows(o);
  int64_t wrong = INT64_MAX;
  for (int64_t i = Block::lane(); i < o.elements; i += Block::kLanes) {
    const int64_t value = is_valid(o, i, rows) ? load_value(o, offset_of(o, i)) : o.first;
    const bool sound = value >= o.first && value < o.stop;
    if (!sound && wrong == INT64_MAX) wrong = i;
    if (o.safe != nullptr) store_value(o, i, sound ? value : o.first);
  }
  wrong = Block::min(wrong);
  if (wrong == INT64_MAX) return {-1, 0};
  return {wrong, load_value(o, offset_of(o, wrong))};
}

}  // namespace opfacade
