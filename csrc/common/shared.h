// Values and blocks that threads share. <atomic> and <mutex> take longer to compile than all of a binding.
#pragma once
#include <sched.h>

namespace opfacade {

template <class T>
T atomic_load(const T& shared) { return __atomic_load_n(&shared, __ATOMIC_ACQUIRE); }
template <class T>
void atomic_store(T& shared, T value) { __atomic_store_n(&shared, value, __ATOMIC_RELEASE); }

// One thread at a time, for blocks of nanoseconds and for what happens once in a kernel's life.
class Alone {
 public:
  explicit Alone(bool& busy) : busy_(busy) {
    while (__atomic_test_and_set(&busy_, __ATOMIC_ACQUIRE)) sched_yield();
  }
  ~Alone() { __atomic_clear(&busy_, __ATOMIC_RELEASE); }
  Alone(const Alone&) = delete;

 private:
  bool& busy_;
};

}  // namespace opfacade
