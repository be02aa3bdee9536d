// Atomics and a lock. <atomic> and <mutex> take longer to compile than a whole binding.
#pragma once
#include <sched.h>

namespace opfacade {

template <class T>
T atomic_load(const T& shared) { return __atomic_load_n(&shared, __ATOMIC_ACQUIRE); }
template <class T>
void atomic_store(T& shared, T value) { __atomic_store_n(&shared, value, __ATOMIC_RELEASE); }

// A spin lock for critical sections of nanoseconds, and for one-time initialisation.
class SpinLockGuard {
 public:
  explicit SpinLockGuard(bool& locked) : locked_(locked) {
    while (__atomic_test_and_set(&locked_, __ATOMIC_ACQUIRE)) sched_yield();
  }
  ~SpinLockGuard() { __atomic_clear(&locked_, __ATOMIC_RELEASE); }
  SpinLockGuard(const SpinLockGuard&) = delete;

 private:
  bool& locked_;
};

}  // namespace opfacade
