// The number of bytes that an address owns. A tensor does not carry its storage's size, and a storage can shrink under a view.
// Python reads that size (host.register_extents), and this cache stores it by address, for all plans.
//
// A freed address that becomes the start of a smaller storage, which is then shrunk under a view of its old size, would pass.
#pragma once
#include <stdint.h>

#include "csrc/common/shared.h"

namespace opfacade {

// Bytes from `first` up to `end`.
struct ByteRange {
  uint64_t first, end;
  bool is_empty() const { return first >= end; }
  bool meets(const ByteRange& other) const { return first < other.end && other.first < end; }
};

// Hash finaliser (two xorshift-multiply rounds): per-layer tensors are at regular strides and would collide modulo kSets.
inline uint64_t hashed(uint64_t address) {
  for (int i = 0; i < 2; ++i) address = (address ^ address >> 32) * 0xd6e8feb86659fd93u;
  return address ^ address >> 32;
}

// Set-associative: 8192 extents. Several threads may use it.
class StorageExtents {
 public:
  static StorageExtents& of_process() {
    static StorageExtents extents;
    return extents;
  }

  // Whether a registered extent contains every range.
  bool contain(const ByteRange* ranges, int count) {
    const SpinLockGuard guard(locked_);
    for (int i = 0; i < count; ++i) {
      if (!ranges[i].is_empty() && !contains(ranges[i])) return false;
    }
    return true;
  }

  void insert(uint64_t first, int64_t bytes) {
    const SpinLockGuard guard(locked_);
    ByteRange* const ways = ways_of(first);
    int at = 0;
    while (at + 1 < kWays && ways[at].first != first) ++at;
    move_to_front(ways, at, {first, first + static_cast<uint64_t>(bytes)});
    atomic_store(generation_, generation_ + 1);
  }

  // Changes with every insert. While it is unchanged, a range that was contained still is.
  uint64_t generation() const { return atomic_load(generation_); }

 private:
  static constexpr int kSets = 1024, kWays = 8;
  struct Set {
    ByteRange ways[kWays];  // newest first
  };

  // Approximate LRU: a hit in the older half of the set moves to the front.
  bool contains(const ByteRange& range) {
    ByteRange* const ways = ways_of(range.first);
    for (int at = 0; at < kWays; ++at) {
      if (ways[at].first != range.first || range.end > ways[at].end) continue;
      if (at >= kWays / 2) move_to_front(ways, at, ways[at]);
      return true;
    }
    return false;
  }
  static void move_to_front(ByteRange* ways, int at, ByteRange newest) {
    for (; at > 0; --at) ways[at] = ways[at - 1];
    ways[0] = newest;
  }
  ByteRange* ways_of(uint64_t first) { return sets_[hashed(first) % kSets].ways; }

  Set sets_[kSets] = {};
  uint64_t generation_ = 1;
  bool locked_ = false;
};

}  // namespace opfacade
