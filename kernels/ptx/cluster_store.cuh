// Stores to the shared memory of another CTA of the cluster. That CTA must be running; a cluster barrier ensures this.
#pragma once
#include <stdint.h>

namespace opfacade {

// address: a result of cluster_address.
__device__ __forceinline__ void cluster_store_two_words(uint32_t address, uint64_t value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
#endif
}

}  // namespace opfacade
