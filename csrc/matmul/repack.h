// Copies of operands that TMA cannot load to the workspace, with rows padded to chunks of sixteen bytes.
#pragma once
#include "csrc/matmul/matmul.h"
#include "kernels/matmul/repack_params.h"

namespace opfacade {

// Each operand whose lines are not a multiple of sixteen bytes has space in the workspace, that of x before that of the weight.
// The plan computes the sizes by the same rule (backends/cuda/matmul_repack.py).
class Repacking {
 public:
  explicit Repacking(void* workspace) : next_(static_cast<unsigned char*>(workspace)) {}

  // Encodes the tensor map of an operand, or that of its copy if TMA cannot load the operand.
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
