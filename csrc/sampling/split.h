// How a row is split over the CTAs of a cluster, and how much of a slice a CTA keeps in shared memory.
#pragma once
#include "csrc/common/launch.h"
#include "csrc/common/operands.h"
#include "kernels/sampling/sample_params.h"

namespace opfacade {

struct RowSplit {
  // ctas: a power of two. bytes: of shared memory for logits.
  RowSplit(int64_t vocab, int64_t ctas, int64_t bytes) : ctas(static_cast<int32_t>(ctas)) {
    slice = static_cast<uint32_t>(ceil_div(ceil_div(vocab, ctas), 32) * 32);
    const int64_t most = bytes / 16 * 4;
    held = static_cast<uint32_t>(most < slice ? most : slice);
  }

  Launch streams(int64_t rows) const { return launch(rows, kStreamShared); }
  // beside: bytes of shared memory besides logits.
  Launch holds(int64_t rows, int64_t beside) const { return launch(rows, beside + 4 * int64_t{held}); }
  Launch launch(int64_t rows, int64_t bytes) const {
    return Launch(rows * ctas, kSampleThreads).shared(bytes).cluster(ctas);
  }

  int32_t ctas;
  uint32_t slice, held;
};

}  // namespace opfacade
