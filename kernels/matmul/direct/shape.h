// Shared memory of products whose operands threads copy unshifted, used by the kernel and its binding.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kDirectStep = 128;  // elements of k per stage
// Bytes per line of a stage. There is space for the word after the last element; eight adjacent lines have all banks once.
constexpr int kDirectPitch = 2 * kDirectStep + 32;

// Number of stages that `length` elements of k use; one if there are none.
constexpr int direct_slots(int stages, int length) {
  const int used = (length + kDirectStep - 1) / kDirectStep;
  return used < 1 ? 1 : used < stages ? used : stages;
}

}  // namespace opfacade
