// Stores to the shared memory of another CTA of the cluster, which has to run: a cluster barrier says so.
#pragma once
#include <stdint.h>

namespace opfacade {

// address: as cluster_address gives it.
__device__ __forceinline__ void cluster_store_two_words(uint32_t address, uint64_t value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
#endif
}

}  // namespace opfacade
