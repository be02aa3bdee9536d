// How many rows a CTA of a fold of ragged rows takes, which no bit of them depends on.
#pragma once
#include "kernels/reduction/ragged_params.h"

namespace opfacade {

constexpr int64_t kElementsOfCta = 32768;  // about: fewer bring their start and end more often, more leave the last CTAs long alone

// A power of two. elements: of all rows. least: CTAs that there shall be where there are as many rows.
inline int32_t rows_of_cta(int64_t rows, int64_t elements, int64_t least) {
  const int64_t length = elements / rows + 1;
  int32_t each = 1;
  while (each < kRaggedThreads && 2 * each * length <= kElementsOfCta && 2 * each * least <= rows) each *= 2;
  return each;
}

}  // namespace opfacade
