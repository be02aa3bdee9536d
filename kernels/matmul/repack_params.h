// Parameters of the copy of operands that TMA cannot load, shared by the kernel and its binding.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kRepackThreads = 256;
constexpr int kRepackPart = 128;  // chunks of sixteen bytes that a warp has of a line

// Lanes that have one line: a power of two of them for its chunks, at most a warp.
constexpr int lanes_of_line(int chunks) {
  int lanes = 1;
  while (lanes < chunks && lanes < 32) lanes *= 2;
  return lanes;
}

// Lines of `length` elements, `step` apart, become lines of whole chunks of sixteen bytes, one behind the other. Strides are in
// elements.
struct RepackOperand {
  const void* from;
  void* to;
  int64_t line, step, batch;
  int32_t lines, length, batches;  // lines: of one of the batches
};

struct RepackParams {
  RepackOperand operand[2];
};

}  // namespace opfacade
