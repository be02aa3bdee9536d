// Whether accesses to shared memory by threads are ordered, by the rules of PTX: what a thread did before it arrives at a
// barrier happens before what others do after they wait for it. A warp is ordered by __syncwarp, not by shuffles or votes, and
// an arrival orders what its own thread did, and what happens before that. Simulated time orders nothing, so a race shows in
// any order in which threads run.
//
// A launch watches if SIMT_ORDER=1. It sees all accesses of kernels that are compiled for it (builds.WATCHED) except those of
// barriers and atomics. A copy by TMA begins after what its thread did before, and ends for those that wait for its barrier. A
// product reads what threads wrote as its thread, but not what TMA copied, because the first step of a prefill multiplies any
// tile by 0. Writes after the read are not checked: wgmma_wait ends the reads of all lanes, and late products show
// stages that are overwritten too early (simt.h). Lanes of a warp may write to the same place, as they do with the same value.
// The first race ends the launch.
#pragma once
#include <stddef.h>
#include <stdint.h>

// For accesses that order other accesses.
#define SIMT_UNSEEN __attribute__((no_sanitize("thread")))

namespace simt::order {

extern bool watched;  // true if this launch is watched
void released(const void* barrier, unsigned phase);
void acquired(const void* barrier, unsigned phase);
void begun(const void* barrier, unsigned phase);
void copying();
void copied(const void* barrier, unsigned phase);
void accessed(const void* first, size_t bytes, bool writes);

// The accesses of this thread so far happen before the accesses of threads that acquire this phase. Two phases alternate.
inline void release(const void* barrier, unsigned phase) {
  if (watched) released(barrier, phase % 2);
}
inline void acquire(const void* barrier, unsigned phase) {
  if (watched) acquired(barrier, phase % 2);
}
// Begins a new phase, in which no thread has arrived.
inline void begin(const void* barrier, unsigned phase) {
  if (watched) begun(barrier, phase % 2);
}
// Writes from here to the end of the copy are writes of TMA: they happen before the code that waits for this phase only.
inline void begin_copy() {
  if (watched) copying();
}
inline void end_copy(const void* barrier, unsigned phase) {
  if (watched) copied(barrier, phase % 2);
}
// Reports an access that the compiler does not report.
inline void write(const void* first, size_t bytes) {
  if (watched) accessed(first, bytes, true);
}

}  // namespace simt::order
