// Parameters of a round of bytes between the GPUs of one host, shared by the kernel and its binding.
// Launch: grid kExchangeCtas, block kExchangeThreads. The grid is always the same: a CTA waits for those of its index on peers.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kExchangeCtas = 32, kExchangeThreads = 512;
constexpr int kMostRanks = 8;

// An arrival of one CTA of one rank. The epoch is written last.
struct alignas(32) Arrival {
  uint64_t digest, facts;
  uint32_t epoch, unused[3];
};

// An arena: arrivals [2][kMostRanks][kExchangeCtas], then places [2][world][place]. The halves take turns.
constexpr int64_t kArrivalBytes = int64_t{2} * kMostRanks * kExchangeCtas * sizeof(Arrival);

// Words of pinned host memory. failed: of each CTA, the ranks that did not arrive, by bits.
struct ExchangePage {
  int64_t begun, ended, poison, odd;
  int64_t failed[kExchangeCtas];
};

struct ExchangeParams {
  const uint8_t* sent;         // [1 or world][bytes], 16-byte aligned
  uint8_t* found;              // [world][bytes]
  const uint64_t* facts;       // a hash of what must be equal on all ranks; null: nothing
  uint32_t* epochs;            // [kExchangeCtas], of the last round
  uint8_t* bad;                // whether a round failed, ever
  ExchangePage* page;
  uint8_t* arenas[kMostRanks];
  int64_t bytes, step, place;  // of a part, a multiple of 16; between parts, 0 if all get the same; of a place in an arena
  uint64_t digest, patience;   // ns
  int32_t rank, world;
};

}  // namespace opfacade
