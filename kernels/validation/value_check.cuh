// Looks at the values of one operand of integers before the operator does: one block, no synchronisation with the host, no trap.
// The first value that is outside goes to the ring of the index check, and the operator runs on a copy without it. One block is
// enough for a level of validation, and one finding an operand leaves room in the ring.
#pragma once
#include "kernels/validation/index_check.cuh"
#include "kernels/validation/value_rules.h"

namespace opfacade {

struct DeviceBlock {
  static constexpr int kLanes = kValueThreads;
  static __device__ __forceinline__ int lane() { return threadIdx.x; }
  static __device__ __forceinline__ int64_t min(int64_t value) {
    __shared__ int64_t least[kLanes / 32];
    const int64_t own = DeviceWarp::min(value);
    if (threadIdx.x % 32 == 0) least[threadIdx.x / 32] = own;
    __syncthreads();
    return DeviceWarp::min(least[threadIdx.x % 32]);
  }
};

// The record has 32 bits for a value and 32 for a limit: here both are the value.
__device__ __forceinline__ void value_check(const ValueCheckParams& p) {
  const uint32_t call = *static_cast<volatile uint32_t*>(&p.state->calls);
  const OutsideValue found = check_values<DeviceBlock>(p.operand);
  if (found.position >= 0 && threadIdx.x == 0) {
    const Finding record{kOutside, static_cast<int16_t>(p.place), static_cast<int32_t>(found.value), found.position,
                         static_cast<int32_t>(found.value >> 32)};
    report(p, 0, record, call);
  }
  finish(p.state);
}

}  // namespace opfacade
