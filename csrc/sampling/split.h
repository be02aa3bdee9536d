// How a row is split over the CTAs of a cluster, whether its groups are aligned, and how much of a slice a CTA keeps in shared
// memory.
#pragma once
#include "csrc/common/launch.h"
#include "csrc/common/operands.h"
#include "kernels/sampling/sample_params.h"

namespace opfacade {

// Whether groups of four logits are aligned in every row.
inline bool has_aligned_groups(const TensorView& logits) {
  const int64_t group = 4 * logits.dtype().bits / 8;
  const int64_t step = logits.size(0) > 1 ? logits.stride(0) * group / 4 : 0;
  return reinterpret_cast<uintptr_t>(logits.data_ptr()) % group == 0 && step % group == 0;
}

struct RowSplit {
  // ctas: a power of two. bytes: shared memory for logits.
  RowSplit(int64_t vocab, int64_t ctas, int64_t bytes) : ctas(static_cast<int32_t>(ctas)) {
    slice = static_cast<uint32_t>(ceil_div(ceil_div(vocab, ctas), 32) * 32);
    const int64_t most = bytes / 16 * 4;
    held = static_cast<uint32_t>(most < slice ? most : slice);
  }

  Launch streams(int64_t rows) const { return launch(rows, kStreamShared); }
  // beside: bytes of shared memory in addition to logits; the lists of a team reuse the memory of the logits.
  Launch holds(int64_t rows, int64_t beside, int64_t threads = kSampleThreads) const {
    const int64_t logits = 4 * int64_t{held};
    return launch(rows, beside + (ctas > 1 && logits < kListsShared ? kListsShared : logits), threads);
  }
  Launch launch(int64_t rows, int64_t bytes, int64_t threads = kSampleThreads) const {
    return Launch(rows * ctas, threads).shared(bytes).cluster(ctas);
  }

  int32_t ctas;
  uint32_t slice, held;
};

// Splits rows with a small k over clusters of `ctas`, of which `at_once` run concurrently. Full rounds use teams of one size;
// the last round gives larger teams to the remaining rows, so that it is short.
struct Rounds {
  Rounds(int64_t rows, int64_t ctas, int64_t at_once) {
    const int64_t places = at_once * ctas;
    int64_t least = INT64_MAX;
    for (int64_t size = 1; size <= ctas; size *= 2) {
      const int64_t rounds = rows / (places / size), rest = rows % (places / size);
      int64_t last = size;
      while (last < ctas && 2 * last * rest <= places) last *= 2;
      const int64_t time = rounds * eighths(size) + (rest > 0 ? eighths(last) : 0);
      if (time >= least) continue;
      least = time, team = static_cast<int32_t>(size), last_team = static_cast<int32_t>(last);
      whole = rounds * at_once, clusters = whole + ceil_div(rest * last, ctas);
    }
  }

  int64_t whole, clusters;  // clusters of full rounds, of all rounds
  int32_t team, last_team;  // CTAs per row in full rounds, and in the last round

 private:
  // The time of a round in eighths of the time in which one CTA reads a row: 1 / size of a row, plus a fixed eighth.
  static int64_t eighths(int64_t size) { return 8 / size + 1; }
};

}  // namespace opfacade
