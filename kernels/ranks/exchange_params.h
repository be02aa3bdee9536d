// Parameters of one exchange between the GPUs of a host (all-gather, or all-to-all if step > 0), shared by the kernel and its
// binding. Launch: grid kExchangeCtas, block kExchangeThreads.
#pragma once
#include "kernels/ranks/round_params.h"

namespace opfacade {

constexpr int kExchangeCtas = 32, kExchangeThreads = 512;

struct ExchangeParams {
  RoundParams round;
  const uint8_t* sent;    // [1 or world][bytes], 16-byte aligned
  uint8_t* found;         // [world][bytes]
  const uint64_t* facts;  // hash of a value that must be equal on all ranks; null: no check
  int64_t flagged;        // whether parts travel in flagged lines
  int64_t bytes, step;    // bytes of a part, a multiple of 16; distance between parts, 0 if all peers get the same part
};

}  // namespace opfacade
