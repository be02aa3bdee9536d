// Parameters of the probes of links between GPUs, shared by the kernels and their binding.
#pragma once
#include "kernels/ranks/round_params.h"

namespace opfacade {

constexpr int kLinkThreads = 512;

struct LinkParams {
  RoundParams round;
  int64_t bytes, times;  // of a rank to each peer in a round, a multiple of 16; rounds of a launch, or packets of a slot
  uint64_t* found;       // rounds: [0] pieces that were wrong. packets: [0] changes that were seen, [1] packets that were torn
};

}  // namespace opfacade
