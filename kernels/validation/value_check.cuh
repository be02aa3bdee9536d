// Checks the values of one integer operand before the operator reads them: one block, no synchronisation with the host, no
// trap. The first value out of bounds is reported in the ring of the index check, and the operator reads a corrected copy. One
// block is fast enough for validation, and the ring is not filled, because each operand has at most one report.
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

// A record has 32 bits each for the value and the limit; here both together hold the 64-bit value.
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
