// Parameters of rounds between the GPUs of one host, shared by their kernels and bindings. Every rank launches the same grid,
// and a CTA waits for the CTAs with the same index on its peers. All CTAs of a grid must be resident together.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kMostCtas = 128, kMostRanks = 8;
constexpr int kRoundShared = 80;  // bytes of shared memory per round

// The announcement of one CTA of one rank: 32-bit words, each with a flag in the upper half.
struct alignas(32) Arrival {
  uint64_t digest[2], facts[2];
};

// An arena: announcements [2][kMostRanks][kMostCtas], then places [2][world][place], then flagged lines [2][world][flagged].
// Rounds alternate between the halves. No other format stores data where flags are.
constexpr int64_t kArrivalBytes = int64_t{2} * kMostRanks * kMostCtas * sizeof(Arrival);

// A chunk of 16 bytes has two flagged lines. Groups of adjacent chunks store their first lines and then their second lines, so
// that a warp stores and loads whole sectors.
constexpr int kChunksOfAGroup = 32;

// Words of pinned host memory. failed: per CTA, a bit for each rank that did not arrive.
struct RoundPage {
  int64_t begun, ended, poison, odd;
  int64_t failed[kMostCtas];
};

// Counters of a group, stored after its epochs: bytes that this rank sent; then, for each rank, the ns that CTA 0 waited for
// it; then, for each rank, how often it arrived last.
constexpr int kCounters = 1 + 2 * kMostRanks;

struct RoundParams {
  uint64_t* epochs;  // [kMostCtas]: number of the last round, equal in all CTAs between launches; then [kCounters]
  uint8_t* bad;      // whether any round has failed
  RoundPage* page;
  uint8_t* arenas[kMostRanks];
  int64_t place, flagged;     // bytes of a place in an arena, and of its flagged lines
  uint64_t digest, patience;  // ns
  int32_t rank, world;
};

}  // namespace opfacade
