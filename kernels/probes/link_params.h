// Parameters of the probes of links between GPUs, shared by the kernels and their binding.
#pragma once
#include "kernels/ranks/round_params.h"

namespace opfacade {

constexpr int kLinkThreads = 512;

struct LinkParams {
  RoundParams round;
  int64_t bytes, times;  // bytes from a rank to each peer per round, a multiple of 16; rounds per launch, or packets per slot
  uint64_t* found;       // rounds: [0] wrong chunks; packets: [0] observed changes, [1] torn packets
};

}  // namespace opfacade
