// Programmatic dependent launch: the next kernel starts while this one ends, and waits on the device. No-op below sm_90 and in
// a launch without the attribute.
#pragma once

namespace opfacade {

// In the first kernel: the next one may be scheduled once every CTA has called this or exited.
__device__ __forceinline__ void allow_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In the second kernel, before it reads results of the first: waits until the first has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace opfacade
