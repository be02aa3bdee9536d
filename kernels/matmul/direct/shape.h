// Shared memory of products by mma.sync whose operands threads copy, used by the kernel and its binding.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kDirectStep = 128;  // elements of k per stage
// Bytes per line of a stage. A line that is not aligned to chunks of sixteen bytes has one chunk more. Words with the same index
// of eight adjacent lines are in different banks.
constexpr int kDirectPitch = 2 * kDirectStep + 16;

// Number of stages that `length` elements of k use; one if there are none.
constexpr int direct_slots(int stages, int length) {
  const int used = (length + kDirectStep - 1) / kDirectStep;
  return used < 1 ? 1 : used < stages ? used : stages;
}

}  // namespace opfacade
