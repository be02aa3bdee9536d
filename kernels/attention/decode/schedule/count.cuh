// Arrival counters in a workspace that is never cleared. The upper bits of a valid counter hold the stamp of this process. A
// CTA that finds other bits writes stamp and count with a compare-and-swap; no CTA waits. The last arrival resets the count to
// zero, so a captured launch can be replayed.
#pragma once
#include "kernels/attention/decode/schedule/cut.cuh"
#include "kernels/ptx/counter.cuh"

namespace opfacade {

// Params: parameters of any kernel, with a field `stamp`.
template <class Params>
__device__ __forceinline__ bool is_stamped(const Params& p, Counter value) { return value >> kCountBits == p.stamp; }

// The number of earlier arrivals. `before` is the value that the increment returned.
template <class Params>
__device__ __forceinline__ int previous_arrivals(const Params& p, Counter* counter, Counter before) {
  while (!is_stamped(p, before)) {
    const Counter seen = before + 1, found = exchange_if(counter, seen, p.stamp << kCountBits | 1);
    if (found == seen) return 0;
    // If another CTA initialised the counter, increment it; if it incremented the old value, retry.
    before = is_stamped(p, found) ? add_one(counter) : found - 1;
  }
  return static_cast<int>(before & kMaxPartials);
}

template <class Params>
__device__ __forceinline__ void reset_counter(const Params& p, Counter* counter) { store_counter(counter, p.stamp << kCountBits); }

}  // namespace opfacade
