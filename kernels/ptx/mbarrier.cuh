// mbarriers in shared memory that count arrivals and bytes (sm_90), addressed by shared address. A wait names the parity of its
// phase: 0 for the first, then alternating.
//
// OPF_WAIT_LIMIT, if defined, bounds the tries of each wait, so that a test of a broken protocol ends with a wrong result
// instead of a hang. Released builds never define it.
#pragma once
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to TMA; a CTA barrier must follow.
__device__ __forceinline__ void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Predicated arrival, without a branch.
__device__ __forceinline__ void mbarrier_arrive_if(bool any, uint32_t barrier) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(barrier),
               "r"(static_cast<uint32_t>(any)) : "memory");
}

// Predicated arrival at a barrier of any CTA of the cluster. The address is a result of cluster_address. It orders no ordinary
// memory accesses of other CTAs: ordering at cluster scope would wait for all pending memory accesses, about 1 us.
__device__ __forceinline__ void mbarrier_arrive_remote_if(bool any, uint32_t barrier) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cluster.b64 _, [%0];\n}" ::"r"(barrier),
               "r"(static_cast<uint32_t>(any)) : "memory");
}

// Arrives and adds `bytes` of TMA transfers to the phase.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives when this thread's earlier cp.async copies complete, without waiting.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done != 0;
}

// Tests once whether the phase is complete.
__device__ __forceinline__ bool mbarrier_is_over(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done != 0;
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
#ifdef OPF_WAIT_LIMIT
  for (int tries = 0; tries < OPF_WAIT_LIMIT; ++tries)
    if (mbarrier_try_wait(barrier, parity)) return;
#else
  while (!mbarrier_try_wait(barrier, parity)) {
  }
#endif
}

}  // namespace opfacade
