// Converts the index of an element, or of a row, to its position along each axis and to the offsets of the operands. Below 2^31
// a division by an extent is a multiplication; only huge results need real divisions.
#pragma once
#include "kernels/elementwise/map_params.h"

namespace opfacade {

__device__ __forceinline__ uint32_t quotient(uint32_t n, MapDivider by) {
  return static_cast<uint32_t>((uint64_t{n} * by.multiplier >> 32) + n) >> by.shift;
}

// Splits n into a quotient, which is returned, and a remainder.
__device__ __forceinline__ int64_t split(int64_t n, int64_t extent, MapDivider by, int64_t& rest) {
  const int64_t found = n < kMapNarrow && extent < kMapNarrow ? int64_t{quotient(static_cast<uint32_t>(n), by)} : n / extent;
  rest = n - found * extent;
  return found;
}

// Positions and offsets along the first `axes` axes; `n` is a linear index over them, the last axis fastest.
template <int kOperands, class Params>
__device__ __forceinline__ void locate(const Params& p, int64_t n, int axes, int64_t (&at)[kOperands], int64_t (&place)[kMapAxes]) {
#pragma unroll
  for (int k = 0; k < kOperands; ++k) at[k] = 0;
#pragma unroll
  for (int axis = kMapAxes - 1; axis >= 0; --axis) {
    place[axis] = 0;
    if (axis >= axes) continue;
    n = split(n, p.extent[axis], p.divider[axis], place[axis]);
#pragma unroll
    for (int k = 0; k < kOperands; ++k) at[k] += place[axis] * p.stride[k][axis];
  }
}

// The same for n below 2^31 and a number of axes that is unknown at compile time; `first` is the position along axis 0. Returns
// the remaining quotient, which is not 0 if n is beyond the last position.
template <int kOperands, class Params>
__device__ __forceinline__ uint32_t locate_outer(const Params& p, uint32_t n, int axes, int64_t (&at)[kOperands], uint32_t& first) {
#pragma unroll
  for (int k = 0; k < kOperands; ++k) at[k] = 0;
  first = 0;
#pragma unroll 1
  for (int axis = axes - 1; axis >= 0; --axis) {
    const uint32_t whole = quotient(n, p.divider[axis]);
    first = n - whole * static_cast<uint32_t>(p.extent[axis]);
#pragma unroll
    for (int k = 0; k < kOperands; ++k) at[k] += first * p.stride[k][axis];
    n = whole;
  }
  return n;
}

// The number of valid rows along axis 0; 0 if the count is out of range.
template <class Params>
__device__ __forceinline__ int64_t valid_rows(const Params& p) {
  if (p.num_valid == nullptr) return INT64_MAX;
  const int64_t counted = *p.num_valid;
  return counted >= 0 && counted <= p.extent[0] ? counted : 0;
}

}  // namespace opfacade
