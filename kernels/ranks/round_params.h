// Parameters of rounds between the GPUs of one host, shared by their kernels and bindings.
// Every rank launches the same grid: a CTA waits for those of its index on peers. All CTAs of a grid fit the GPU at once.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kMostCtas = 128, kMostRanks = 8;

// An arrival of one CTA of one rank. The epoch is written last.
struct alignas(32) Arrival {
  uint64_t digest, facts, epoch, unused;
};

// An arena: arrivals [2][kMostRanks][kMostCtas], then places [2][world][place]. The halves take turns.
constexpr int64_t kArrivalBytes = int64_t{2} * kMostRanks * kMostCtas * sizeof(Arrival);

// Words of pinned host memory. failed: of each CTA, the ranks that did not arrive, by bits.
struct RoundPage {
  int64_t begun, ended, poison, odd;
  int64_t failed[kMostCtas];
};

struct RoundParams {
  uint64_t* epochs;  // [kMostCtas], of the last round, all equal between launches
  uint8_t* bad;      // whether a round failed, ever
  RoundPage* page;
  uint8_t* arenas[kMostRanks];
  int64_t place;              // bytes of a place in an arena
  uint64_t digest, patience;  // ns
  int32_t rank, world;
};

}  // namespace opfacade
