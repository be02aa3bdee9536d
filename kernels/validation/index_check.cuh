// Check of all index tensors of a call before the operator runs: one warp per request, no synchronisation, no trap. Findings go
// to a ring that the host reads at its next call; the operator runs on tables in which wrong requests are empty. Calls are
// counted on the device, so that each replay of a CUDA graph has its own number.
#pragma once
#include "kernels/validation/index_rules.h"

namespace opfacade {

struct DeviceWarp {
  static constexpr int kLanes = 32;
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  template <class T, class Join>
  static __device__ __forceinline__ T reduce(T value, Join join) {
    for (int delta = 16; delta > 0; delta /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, delta));
    return value;
  }
  template <class T>
  static __device__ __forceinline__ T max(T value) {
    return reduce(value, [](T a, T b) { return a > b ? a : b; });
  }
  template <class T>
  static __device__ __forceinline__ T min(T value) {
    return reduce(value, [](T a, T b) { return a < b ? a : b; });
  }
  template <class T>
  static __device__ __forceinline__ T sum(T value) {
    return reduce(value, [](T a, T b) { return a + b; });
  }
};

// Claims a record, unless the host is kRecords behind: then the new finding is dropped.
template <class Params>
__device__ __forceinline__ bool claim(const Params& p, uint32_t& claimed) {
  const volatile uint32_t* consumed = &p.ring->consumed;
  claimed = *static_cast<volatile uint32_t*>(&p.state->reserved);
  for (;;) {
    if (claimed - *consumed >= kRecords) return false;
    const uint32_t seen = atomicCAS(&p.state->reserved, claimed, claimed + 1);
    if (seen == claimed) return true;
    claimed = seen;
  }
}

template <class Params>
__device__ __forceinline__ void report(const Params& p, int request, const Finding& found, uint32_t call) {
  uint32_t claimed;
  if (!claim(p, claimed)) return;
  IndexRecord& record = p.ring->records[claimed % kRecords];
  record.rule = found.rule;
  record.place = found.place;
  record.request = request;
  record.value = found.value;
  record.position = found.position;
  record.limit = found.limit;
  record.call = call;
  __threadfence_system();
  *static_cast<volatile uint32_t*>(&record.sequence) = claimed + 1;
}

// The last CTA of a launch counts the launch; atomicInc wraps to 0 by itself.
__device__ __forceinline__ void finish(IndexState* state) {
  __syncthreads();
  if (threadIdx.x == 0 && atomicInc(&state->done, gridDim.x - 1) == gridDim.x - 1) atomicAdd(&state->calls, 1u);
}

__device__ __forceinline__ void index_check(const IndexCheckParams& p) {
  const uint32_t call = *static_cast<volatile uint32_t*>(&p.state->calls);
  const int request = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (request < p.tables.batch) {
    const Finding found = judge<DeviceWarp>(p.tables, request);
    make_safe<DeviceWarp>(p.tables, p.safe, request, found.rule == kSound);
    if (found.rule != kSound && threadIdx.x % 32 == 0) report(p, request, found, call);
  }
  finish(p.state);
}

}  // namespace opfacade
