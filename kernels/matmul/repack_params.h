// Parameters of the copy of operands that TMA cannot load, shared by the kernel and its binding.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kRepackThreads = 256;
constexpr int kRepackPart = 128;  // chunks of sixteen bytes of a line per warp

// Lanes per line: the number of its chunks rounded up to a power of two, at most a warp.
constexpr int lanes_of_line(int chunks) {
  int lanes = 1;
  while (lanes < chunks && lanes < 32) lanes *= 2;
  return lanes;
}

// Copies lines of `length` elements with stride `step` to contiguous lines, each padded to a multiple of sixteen bytes. Strides
// are in elements.
struct RepackOperand {
  const void* from;
  void* to;
  int64_t line, step, batch;
  int32_t lines, length, batches;  // lines: lines per batch
};

struct RepackParams {
  RepackOperand operand[2];
};

}  // namespace opfacade
