// A round of bytes between the GPUs of one host: push to all peers, then wait for arrivals in own memory, for so long and no
// longer. Every value may be a payload: epochs beside the data mark arrivals.
#pragma once
#include "kernels/ranks/exchange_params.h"

namespace opfacade {

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ void tell_epoch(Arrival* to, uint32_t epoch) {
  __threadfence_system();
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&to->epoch), "r"(epoch) : "memory");
}

__device__ __forceinline__ uint32_t told_epoch(const Arrival* from) {
  uint32_t epoch;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(epoch) : "l"(&from->epoch) : "memory");
  return epoch;
}

struct Exchange {
  const ExchangeParams& p;
  const int cta = blockIdx.x, thread = threadIdx.x;
  const int64_t lines, first, last;  // of 16 bytes: of a part, and those of this CTA

  __device__ explicit Exchange(const ExchangeParams& params)
      : p(params), lines(p.bytes / 16), first(lines * blockIdx.x / kExchangeCtas), last(lines * (blockIdx.x + 1) / kExchangeCtas) {}

  __device__ Arrival* arrival(int at, int parity, int source) const {
    return reinterpret_cast<Arrival*>(p.arenas[at]) + (int64_t{parity} * kMostRanks + source) * kExchangeCtas + cta;
  }
  __device__ uint4* place(int at, int parity, int source) const {
    return reinterpret_cast<uint4*>(p.arenas[at] + kArrivalBytes + (int64_t{parity} * p.world + source) * p.place);
  }
  __device__ const uint4* part(int to) const { return reinterpret_cast<const uint4*>(p.sent + to * p.step); }
  __device__ uint4* result(int source) const { return reinterpret_cast<uint4*>(p.found + source * p.bytes); }

  __device__ void push(int parity) const {
    for (int hop = 1; hop < p.world; ++hop) {
      const int to = (p.rank + hop) % p.world;
      const uint4* from = part(to);
      uint4* there = place(to, parity, p.rank);
      for (int64_t i = first + thread; i < last; i += kExchangeThreads) there[i] = from[i];
    }
  }

  // Whether the rank of this thread arrived in time with the same call.
  __device__ bool arrived(int parity, uint32_t epoch, uint64_t facts) const {
    const Arrival* from = arrival(p.rank, parity, thread);
    const uint64_t start = now_ns();
    while (told_epoch(from) != epoch) {
      const uint64_t waited = now_ns() - start;
      if (waited > p.patience || (waited > 1000000 && *const_cast<volatile int64_t*>(&p.page->poison) != 0)) {
        atomicOr(reinterpret_cast<unsigned long long*>(missing()), 1ull << thread);
        return false;
      }
    }
    const volatile Arrival* told = from;
    if (told->digest == p.digest && told->facts == facts) return true;
    atomicOr(reinterpret_cast<unsigned long long*>(odd()), 1ull << thread);
    return false;
  }

  __device__ static uint64_t* missing() {
    __shared__ uint64_t ranks;
    return &ranks;
  }
  __device__ static uint64_t* odd() {
    __shared__ uint64_t ranks;
    return &ranks;
  }

  __device__ void take(int parity) const {
    for (int source = 0; source < p.world; ++source) {
      const uint4* from = source == p.rank ? part(p.rank) : place(p.rank, parity, source);
      uint4* to = result(source);
      for (int64_t i = first + thread; i < last; i += kExchangeThreads) to[i] = __ldcg(from + i);
    }
  }

  // NaN in every float type, -1 in every integer.
  __device__ void fill() const {
    const uint4 none = make_uint4(~0u, ~0u, ~0u, ~0u);
    for (int source = 0; source < p.world; ++source)
      for (int64_t i = first + thread; i < last; i += kExchangeThreads) result(source)[i] = none;
  }

  __device__ void run() const {
    __shared__ uint32_t epoch_of_all;
    __shared__ uint32_t ended_before;
    if (thread == 0) {
      epoch_of_all = p.epochs[cta] + 1, *missing() = 0, *odd() = 0;
      ended_before = *const_cast<volatile uint8_t*>(p.bad);
      if (cta == 0) *const_cast<volatile int64_t*>(&p.page->begun) = epoch_of_all;
    }
    __syncthreads();
    const uint32_t epoch = epoch_of_all;
    const int parity = epoch & 1;
    if (ended_before) return fill();
    push(parity);
    const uint64_t facts = p.facts == nullptr ? 0 : *p.facts;
    const bool peer = thread < p.world && thread != p.rank;
    if (peer) {
      volatile Arrival* there = arrival(thread, parity, p.rank);
      there->digest = p.digest, there->facts = facts;
    }
    __syncthreads();
    if (peer) tell_epoch(arrival(thread, parity, p.rank), epoch);
    if (peer) arrived(parity, epoch, facts);
    __syncthreads();
    const uint64_t failed = *missing(), differ = *odd();
    if (thread == 0) {
      p.epochs[cta] = epoch;
      if (failed) *const_cast<volatile int64_t*>(&p.page->failed[cta]) = static_cast<int64_t>(failed);
      if (differ) *const_cast<volatile int64_t*>(&p.page->odd) = static_cast<int64_t>(differ);
      if (failed | differ) *const_cast<volatile uint8_t*>(p.bad) = 1;
      if (cta == 0 && !failed) *const_cast<volatile int64_t*>(&p.page->ended) = epoch;
    }
    if (failed | differ) return fill();
    take(parity);
  }
};

}  // namespace opfacade
