// Programmatic dependent launch: the second kernel of a pair starts while the first one ends, and waits on the device. On
// architectures without it, and in a launch without the attribute, both are no-ops.
#pragma once

namespace opfacade {

// In the first kernel: the next one may be scheduled once every block has said so or ended.
__device__ __forceinline__ void allow_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In the second kernel, before it reads what the first wrote: the first has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace opfacade
