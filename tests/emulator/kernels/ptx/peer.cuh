// Shadows kernels/ptx/peer.cuh: each rank is a thread of the process, with a copy of the library. Bytes that a rank pushed
// arrive when it executes a fence, as late as allowed.
#pragma once
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <vector>

#include "tests/emulator/simt.h"

namespace opfacade {

struct Pushed {
  void* to;
  unsigned char value[16];
  size_t size;
};
inline std::vector<Pushed>& pushed() {
  static std::vector<Pushed> found;
  return found;
}

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

template <class T>
inline void push(T* to, T value) {
  static_assert(sizeof(T) <= 16, "one store");
  Pushed one{to, {}, sizeof(T)};
  memcpy(one.value, &value, sizeof(T));
  pushed().push_back(one);
}

inline void fence_system() {
  for (const Pushed& one : pushed()) memcpy(one.to, one.value, one.size);
  pushed().clear();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

inline void push_flagged(uint4* to, uint32_t first, uint32_t second, uint32_t flag) {
  uint64_t* const halves = reinterpret_cast<uint64_t*>(to);
  __atomic_store_n(halves + 1, uint64_t{flag} << 32 | second, __ATOMIC_RELEASE);  // the halves may arrive in any order
  __atomic_store_n(halves, uint64_t{flag} << 32 | first, __ATOMIC_RELEASE);
}

inline void tell_flagged(uint4* to, uint32_t first, uint32_t second, uint32_t flag) {
  push_flagged(to, first, second, flag);
  const timespec pause{0, 200000};  // gives a peer that sees the flag too early the time to read in between
  nanosleep(&pause, nullptr);
}

inline bool came_flagged(const uint4* from, uint32_t flag, uint2& value) {
  const uint64_t* const halves = reinterpret_cast<const uint64_t*>(from);
  const uint64_t first = __atomic_load_n(halves, __ATOMIC_ACQUIRE), second = __atomic_load_n(halves + 1, __ATOMIC_ACQUIRE);
  value = make_uint2(uint32_t(first), uint32_t(second));
  const bool came = first >> 32 == flag && second >> 32 == flag;
  if (!came) sched_yield();
  return came;
}

inline bool told_flagged(const uint4* from, uint32_t flag, uint2& value) { return came_flagged(from, flag, value); }

inline bool came_if(bool wanted, const uint4* from, uint32_t flag, uint2& value) {
  value = make_uint2(0, 0);
  return wanted && came_flagged(from, flag, value);
}

inline void forget_flagged(uint4* line) { *line = make_uint4(0, 0, 0, 0); }

inline void add_counter(uint64_t* counter, uint64_t more) { __atomic_fetch_add(counter, more, __ATOMIC_RELAXED); }

// The words of a packet arrive one after the other.
template <int kWords>
inline void push_words(uint32_t* to, const uint32_t (&word)[kWords]) {
  for (int i = 0; i < kWords; ++i) __atomic_store_n(to + i, word[i], __ATOMIC_RELAXED);
}
template <int kWords>
inline void pull_words(const uint32_t* from, uint32_t (&word)[kWords]) {
  for (int i = 0; i < kWords; ++i) word[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
}

}  // namespace opfacade
