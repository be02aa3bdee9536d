// Parameters of rounds between the GPUs of one host, shared by their kernels and bindings.
// Every rank launches the same grid: a CTA waits for those of its index on peers. All CTAs of a grid fit the GPU at once.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kMostCtas = 128, kMostRanks = 8;
constexpr int kRoundShared = 80;  // bytes of shared memory that a round has

// An arrival of one CTA of one rank: words of 32 bits, each with a flag above it.
struct alignas(32) Arrival {
  uint64_t digest[2], facts[2];
};

// An arena: arrivals [2][kMostRanks][kMostCtas], then places [2][world][place], then flagged lines [2][world][flagged]. The
// halves take turns. Flags lie where no other format has data.
constexpr int64_t kArrivalBytes = int64_t{2} * kMostRanks * kMostCtas * sizeof(Arrival);

// Words of pinned host memory. failed: of each CTA, the ranks that did not arrive, by bits.
struct RoundPage {
  int64_t begun, ended, poison, odd;
  int64_t failed[kMostCtas];
};

// Counters of a group behind its epochs: bytes that this rank sent, then for each rank the ns that CTA 0 waited for it, and then how
// often it came last.
constexpr int kCounters = 1 + 2 * kMostRanks;

struct RoundParams {
  uint64_t* epochs;  // [kMostCtas], of the last round, all equal between launches; then [kCounters]
  uint8_t* bad;      // whether a round failed, ever
  RoundPage* page;
  uint8_t* arenas[kMostRanks];
  int64_t place, flagged;     // bytes of a place in an arena, and of flagged lines
  uint64_t digest, patience;  // ns
  int32_t rank, world;
};

}  // namespace opfacade
