// Parameters of a sum over ranks with a fold behind it, shared by the kernel and its binding.
// Launch: at most kMostCtas CTAs, each of the threads that the fold has; shared memory: of the fold, of this, then sums.
#pragma once
#include "kernels/ranks/round_params.h"

namespace opfacade {

// A result of the fold. In two steps a rank makes its rows in its own place, and those that travel are copied from all places.
struct Made {
  uint8_t* to;          // row 0
  int64_t step, inner;  // bytes from row to row, and from element to element
  int64_t offset;       // of row 0 in a place
  int32_t count, size;  // elements of a row, and bytes of one
  int32_t fill;         // a byte that says "no result"
  int32_t travels;
};

template <class Fold, int kOperands, int kMade>
struct SumFoldParams {
  Fold fold;  // operand 0 is the sum
  RoundParams round;
  const uint8_t* x;          // the term of this rank
  const int32_t* num_valid;  // null: all rows are valid
  const uint32_t* alike;     // a word that must be equal on all ranks; null: none
  int64_t rows, before, all;  // rows, how many of the whole problem lie before them, and its rows
  int64_t row_bytes, step;   // of a row of x, and from row to row
  int64_t pitch;             // from row to row in a place, a multiple of 16
  int32_t size[kOperands];   // bytes of an element
  int32_t held;              // bytes of shared memory for sums of all rows of a CTA, for flagged lines; 0: sums wait in a place
  int32_t flagged;           // whether rows travel in flagged lines, in one step only; they have whole lines of 16 bytes then
  Made made[kMade];          // the last operands of the fold
};

}  // namespace opfacade
