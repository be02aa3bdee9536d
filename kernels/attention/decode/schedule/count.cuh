// Counters that start from any memory: the workspace is never cleared. A counter holds the stamp of this process in its upper
// bits; who finds another number there puts stamp and count in its place, unless somebody else was first. Nobody waits. Whoever
// counts last sets it back to zero, so that a captured launch can be replayed.
#pragma once
#include "kernels/attention/decode/schedule/cut.cuh"
#include "kernels/ptx/counter.cuh"

namespace opfacade {

// Params: of any kernel that has a stamp.
template <class Params>
__device__ __forceinline__ bool is_stamped(const Params& p, Counter value) { return value >> kCountBits == p.stamp; }

// How many were counted before, given what was there before one was added.
template <class Params>
__device__ __forceinline__ int counted(const Params& p, Counter* counter, Counter before) {
  while (!is_stamped(p, before)) {
    const Counter seen = before + 1, found = exchange_if(counter, seen, p.stamp << kCountBits | 1);
    if (found == seen) return 0;
    before = is_stamped(p, found) ? add_one(counter) : found - 1;  // the others were first: counted as usual, or added as here
  }
  return static_cast<int>(before & kMostParts);
}

template <class Params>
__device__ __forceinline__ void set_back(const Params& p, Counter* counter) { store_counter(counter, p.stamp << kCountBits); }

}  // namespace opfacade
