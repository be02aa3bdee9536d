// Shadows kernels/ptx/mbarrier.cuh: arrivals, bytes and the parity of the phase, in the eight bytes of a barrier.
#pragma once
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

struct Barrier {
  int16_t expected, pending;
  int32_t bytes : 31;
  uint32_t phase : 1;
};
static_assert(sizeof(Barrier) == 8);

inline Barrier& barrier_at(uint32_t address) { return *reinterpret_cast<Barrier*>(simt::at(address)); }
SIMT_UNSEEN inline void settle(Barrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  simt::order::begin(&barrier, barrier.phase ^= 1);
  barrier.pending = barrier.expected;
}

SIMT_UNSEEN inline void mbarrier_init(uint32_t address, uint32_t arrivals) {
  const int16_t count = static_cast<int16_t>(arrivals);
  barrier_at(address) = {count, count, 0, 0};
}
inline void mbarrier_init_fence() {}
SIMT_UNSEEN inline void mbarrier_arrive(uint32_t address) {
  Barrier& barrier = barrier_at(address);
  simt::order::release(&barrier, barrier.phase);
  --barrier.pending, settle(barrier);
}
inline void mbarrier_arrive_if(bool any, uint32_t address) {
  if (any) mbarrier_arrive(address);
}
inline void mbarrier_arrive_remote_if(bool any, uint32_t address) { mbarrier_arrive_if(any, address); }
SIMT_UNSEEN inline void mbarrier_arrive_expect(uint32_t address, uint32_t bytes) {
  barrier_at(address).bytes += static_cast<int>(bytes);
  mbarrier_arrive(address);
}
SIMT_UNSEEN inline void mbarrier_bytes_came(uint32_t address, uint32_t bytes) {
  Barrier& barrier = barrier_at(address);
  simt::order::end_copy(&barrier, barrier.phase);
  barrier.bytes -= static_cast<int>(bytes);
  settle(barrier);
}
inline void mbarrier_arrive_after_copies(uint32_t address) {
  cp_async_commit();
  cp_async_wait<0>();
  mbarrier_arrive(address);
}
SIMT_UNSEEN inline bool mbarrier_try_wait(uint32_t address, uint32_t parity) {
  Barrier& barrier = barrier_at(address);
  const bool over = barrier.phase != parity;
  if (over) simt::order::acquire(&barrier, parity);
  return over;
}
inline bool mbarrier_is_over(uint32_t address, uint32_t parity) { return mbarrier_try_wait(address, parity); }
inline void mbarrier_wait(uint32_t address, uint32_t parity) {
  while (!mbarrier_try_wait(address, parity)) simt::yield();
}

}  // namespace opfacade
