// Copies of operands that TMA cannot load, in the workspace: lines of whole chunks of sixteen bytes.
#pragma once
#include "csrc/matmul/matmul.h"
#include "kernels/matmul/repack_params.h"

namespace opfacade {

// Operands whose lines are not whole chunks have a place in the workspace, x before the weight: the plan has its bytes by the same
// rule (backends/cuda/matmul_repack.py).
class Repacking {
 public:
  explicit Repacking(void* workspace) : next_(static_cast<unsigned char*>(workspace)) {}

  // The map of an operand, or of the copy that takes its place.
  bool map(TensorMap& map, MatmulOperand& of, const MatmulParams& p, int64_t rows, int32_t box, bool across, MapElement element) {
    const int64_t size = element == MapElement::kByte ? 1 : 2;
    const RepackOperand plain{of.data, next_, across ? of.k : of.row, across ? of.row : of.k, of.batch,
                              static_cast<int32_t>(across ? p.k : rows), static_cast<int32_t>(across ? rows : p.k), p.batch};
    const int64_t pitch = ceil_div(plain.length * size, 16) * 16, lines = plain.lines;
    const bool placed = plain.length * size != pitch, mapped = map_operand(map, of, p, rows, box, across, element);
    if (placed) next_ += ceil_div(p.batch * lines * pitch, 256) * 256;
    if (mapped || !placed) return mapped;
    add(plain, ceil_div(pitch, 16));
    of = {plain.to, across ? 1 : pitch / size, across ? pitch / size : 1, lines * pitch / size};
    return map_operand(map, of, p, rows, box, across, element);
  }
  void launch(Kernel& kernel, DLDevice device) const {
    if (count_ > 0) kernel.launch(device, Launch({blocks_, count_}, kRepackThreads).pdl(), params_);
  }

 private:
  void add(const RepackOperand& of, int64_t chunks) {
    params_.operand[count_++] = of;
    const int64_t lines = ceil_div(int64_t{of.batches} * of.lines, 32 / lanes_of_line(static_cast<int>(chunks)));
    const int64_t warps = lines * ceil_div(chunks, kRepackPart);
    const int64_t blocks = ceil_div(warps, kRepackThreads / 32);
    blocks_ = blocks > blocks_ ? blocks : blocks_;
  }

  RepackParams params_{};
  unsigned char* next_;
  int64_t blocks_ = 0;
  int count_ = 0;
};

}  // namespace opfacade
