// Rounds between the GPUs of one host: push to all peers, then wait for arrivals in own memory, for so long and no longer. Every
// value may be a payload: epochs beside the data mark arrivals.
//
// A half of an arena is written again two rounds later. By then each peer has read it: it has told the round between, which it
// begins only when all CTAs that read before have ended, or this CTA of it has.
#pragma once
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/peer.cuh"
#include "kernels/ranks/round_params.h"

namespace opfacade {

constexpr uint64_t kGlance = 1000000;  // ns after which a wait looks for poison of the host

struct RoundShared {
  uint64_t epoch;
  uint32_t missing, odd, over, unused;
};

struct Round {
  const RoundParams& p;
  RoundShared& shared;
  const int cta = blockIdx.x, thread = threadIdx.x;

  __device__ Round(const RoundParams& params, RoundShared& of_cta) : p(params), shared(of_cta) {}

  __device__ int parity() const { return static_cast<int>(shared.epoch & 1); }
  __device__ Arrival* arrival(int at, int source) const {
    return reinterpret_cast<Arrival*>(p.arenas[at]) + (int64_t{parity()} * kMostRanks + source) * kMostCtas + cta;
  }
  // The bytes that `source` sends to `at` in this round.
  __device__ uint8_t* place(int at, int source) const {
    return p.arenas[at] + kArrivalBytes + (int64_t{parity()} * p.world + source) * p.place;
  }
  __device__ int peer(int hop) const { return (p.rank + hop) % p.world; }

  // Whether there is a round: none failed before.
  __device__ bool begin() const {
    if (thread == 0) {
      shared.over = *const_cast<volatile uint8_t*>(p.bad);
      start(p.epochs[cta] + 1);
    }
    __syncthreads();
    return shared.over == 0;
  }
  // A further round of the same launch.
  __device__ void next() const {
    __syncthreads();
    if (thread == 0) start(shared.epoch + 1);
    __syncthreads();
  }

  // Behind pushes: tells all peers, and waits for them. Whether all came to this call, with the same facts.
  __device__ bool meet(uint64_t facts) const {
    const bool peer = thread < p.world && thread != p.rank;
    if (peer) {
      Arrival* const there = arrival(thread, p.rank);
      push(&there->digest, p.digest), push(&there->facts, facts);
    }
    __syncthreads();
    if (peer) {
      fence_system();
      tell_epoch(&arrival(thread, p.rank)->epoch, shared.epoch);
    }
    // The page of the host is written while the CTA waits: a fence before would wait for that store too.
    if (thread == p.rank && cta == 0) *const_cast<volatile int64_t*>(&p.page->begun) = static_cast<int64_t>(shared.epoch);
    if (peer) await(facts);
    __syncthreads();
    const bool met = (shared.missing | shared.odd) == 0;
    if (thread == 0) note(met);
    return met;
  }

  // The last step of a launch.
  __device__ void end() const {
    if (thread != 0) return;
    if (cta == 0 && !shared.missing) *const_cast<volatile int64_t*>(&p.page->ended) = static_cast<int64_t>(shared.epoch);
    for (int at = cta; at < kMostCtas; at += gridDim.x) p.epochs[at] = shared.epoch;
  }

 private:
  __device__ void start(uint64_t epoch) const {
    shared.epoch = epoch, shared.missing = 0, shared.odd = 0;
  }

  // Waits for the rank of this thread.
  __device__ void await(uint64_t facts) const {
    const Arrival* const from = arrival(p.rank, thread);
    const uint64_t start = now_ns();
    while (told_epoch(&from->epoch) != shared.epoch) {
      const uint64_t waited = now_ns() - start;
      if (waited > p.patience || (waited > kGlance && *const_cast<volatile int64_t*>(&p.page->poison) != 0)) {
        atomicOr(&shared.missing, 1u << thread);
        return;
      }
    }
    const volatile Arrival* const told = from;
    if (told->digest != p.digest || told->facts != facts) atomicOr(&shared.odd, 1u << thread);
  }

  __device__ void note(bool met) const {
    if (shared.missing) *const_cast<volatile int64_t*>(&p.page->failed[cta]) = static_cast<int64_t>(shared.missing);
    if (shared.odd) *const_cast<volatile int64_t*>(&p.page->odd) = static_cast<int64_t>(shared.odd);
    if (!met) *const_cast<volatile uint8_t*>(p.bad) = 1;
  }
};

}  // namespace opfacade
