// Chooses how many rows a CTA of a ragged fold takes. No bit of a row depends on it.
#pragma once
#include "kernels/reduction/ragged_params.h"

namespace opfacade {

// A power of two, at most one row per thread. elements: in all rows. least: number of CTAs wanted, if there are enough rows.
// most: elements of a CTA, about.
inline int32_t rows_of_cta(int64_t rows, int64_t elements, int64_t least, int32_t threads, int64_t most) {
  const int64_t length = elements / rows + 1;
  int32_t each = 1;
  while (each < threads && 2 * each * length <= most && 2 * each * least <= rows) each *= 2;
  return each;
}

}  // namespace opfacade
