// Chooses how many rows a CTA of a ragged fold takes. No bit of a row depends on it.
#pragma once
#include "kernels/reduction/ragged_params.h"

namespace opfacade {

constexpr int64_t kElementsOfCta = 32768;  // about: smaller CTAs start more often, of larger ones the last run alone for long

// A power of two. elements: in all rows. least: number of CTAs wanted, if there are enough rows.
inline int32_t rows_of_cta(int64_t rows, int64_t elements, int64_t least) {
  const int64_t length = elements / rows + 1;
  int32_t each = 1;
  while (each < kRaggedThreads && 2 * each * length <= kElementsOfCta && 2 * each * least <= rows) each *= 2;
  return each;
}

}  // namespace opfacade
