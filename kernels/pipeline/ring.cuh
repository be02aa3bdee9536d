// A ring of stages in shared memory between threads that fill them and threads that read them (sm_90). Each side counts its uses:
//
//   Ring<kStages> ring;                                              // on both sides
//   ring.wait_empty(empty), fill, publish_writes(full), ring.advance();
//   ring.wait_full(full), read, warp_arrive(empty), ring.advance();
//
// Constraints: the barriers of a stage expect the arrivals of all that fill it, and of all that read it, once for each use; then no
// barrier is more than one phase ahead of a thread that waits. TMA fills a stage after mbarrier_arrive_expect, and arrives itself.
// A barrier is named by its address, or by the array that has one for each stage.
#pragma once
#include "kernels/ptx/tma.cuh"

namespace opfacade {

// The position in a ring, with the parity of the current phase.
template <int kStages>
struct Ring {
  using Barriers = uint64_t[kStages];
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ uint32_t at(const Barriers& barriers) const { return smem_address(&barriers[stage]); }

  __device__ __forceinline__ void wait_full(uint32_t full) const { mbarrier_wait(full, parity); }
  __device__ __forceinline__ void wait_full(const Barriers& full) const { wait_full(at(full)); }
  __device__ __forceinline__ void wait_empty(uint32_t empty) const { mbarrier_wait(empty, parity ^ 1); }
  __device__ __forceinline__ void wait_empty(const Barriers& empty) const { wait_empty(at(empty)); }
  // For a warp of which one lane then fills the stage: all lanes have seen the phase before the barrier can advance by two
  // phases.
  __device__ __forceinline__ void wait_empty_together(const Barriers& empty) const {
    wait_empty(empty);
    __syncwarp();
  }
  // These functions test once and do not wait.
  __device__ __forceinline__ bool is_full(const Barriers& full) const { return mbarrier_is_over(at(full), parity); }
  __device__ __forceinline__ bool is_empty(const Barriers& empty) const { return mbarrier_is_over(at(empty), parity ^ 1); }
};

// Arrives after this thread's ordinary writes to the stage, which TMA and tensor cores then see.
__device__ __forceinline__ void publish_writes(uint32_t full) {
  fence_async_shared();
  mbarrier_arrive(full);
}

// Arrives once for this warp, after all its lanes have reached this point.
__device__ __forceinline__ void warp_arrive(uint64_t& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(&barrier));
}
// The same, predicated instead of a branch, which would end the overlap with asynchronous products.
__device__ __forceinline__ void warp_arrive_at(uint32_t barrier) {
  __syncwarp();
  mbarrier_arrive_if(threadIdx.x % 32 == 0, barrier);
}

}  // namespace opfacade
