// Parameters of a sum over ranks followed by a fold, shared by the kernel and its binding. Launch: at most kMostCtas CTAs, each
// with the threads of the fold. Shared memory: that of the fold, that of this kernel, then the sums.
#pragma once
#include "kernels/ranks/round_params.h"

namespace opfacade {

// A result of the fold. In two steps, a rank writes its rows into its own place, and results with `travels` are sent and copied
// from all places.
struct Made {
  uint8_t* to;          // row 0
  int64_t step, inner;  // bytes between rows, and between elements
  int64_t offset;       // offset of row 0 in a place
  int32_t count, size;  // elements of a row, and bytes per element
  int32_t fill;         // byte value that means "no result"
  int32_t travels;
};

template <class Fold, int kOperands, int kMade>
struct SumFoldParams {
  Fold fold;  // operand 0 is the sum
  RoundParams round;
  const uint8_t* x;          // the term of this rank
  const int32_t* num_valid;  // null: all rows are valid
  const uint32_t* alike;     // a word that must be equal on all ranks; null: no check
  int64_t rows, before, all;  // rows of this launch, rows of the whole problem before them, all rows of the problem
  int64_t row_bytes, step;   // bytes of a row of x, and between rows
  int64_t pitch;             // bytes between rows in a place, a multiple of 16
  int32_t size[kOperands];   // bytes of an element
  int32_t held;              // with flagged lines: bytes of shared memory for the sums of a CTA's rows; 0: sums are in a place
  int32_t flagged;           // whether rows are sent in flagged lines: one step only, and rows must be whole lines of 16 bytes
  Made made[kMade];          // the last operands of the fold
};

}  // namespace opfacade
