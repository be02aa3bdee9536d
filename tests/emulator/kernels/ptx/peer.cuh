// Shadows kernels/ptx/peer.cuh: each rank is a thread of the process, with a copy of the library. Bytes
// that a rank pushed arrive when it fences, as late as they may.
#pragma once
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <vector>

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

inline void tell_epoch(uint64_t* to, uint64_t epoch) {
  __atomic_store_n(to, epoch, __ATOMIC_RELEASE);
  const timespec pause{0, 200000};  // a peer that sees the epoch too early reads meanwhile
  nanosleep(&pause, nullptr);
}

inline uint64_t told_epoch(const uint64_t* from) {
  sched_yield();
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

}  // namespace opfacade
