// Probes of links between GPUs: rounds of the protocol alone, many per launch, and packets whose words show whether they
// arrived whole. python -m bench.distributed --only p2_rounds,p3_packets,p6_header runs them.
#pragma once
#include "kernels/probes/link_params.h"
#include "kernels/ranks/round.cuh"

namespace opfacade {

// kPlaces: bulk stores, a fence and a header. kLines: lines with flags and a header. kBare: lines with flags only.
enum class RoundKind { kPlaces, kLines, kBare };

template <RoundKind kKind>
struct ProbeRounds {
  const LinkParams& p;
  Round round;

  __device__ explicit ProbeRounds(const LinkParams& params)
      : p(params), round(params.round, *reinterpret_cast<RoundShared*>(dynamic_shared())) {}

  __device__ void run() const {
    if (!round.begin()) return;
    bool met = true;
    for (int64_t i = 0; i < p.times && met; ++i) {
      // otherwise a flag might be cleared after the line is written again
      if (i > 0 && kKind != RoundKind::kPlaces) __threadfence();
      if (i > 0) round.next();
      met = kKind == RoundKind::kPlaces ? by_places() : by_lines();
      if (met) check();
    }
    round.end(0);
  }

 private:
  __device__ uint4 value(int source, int64_t piece) const {
    const uint32_t epoch = static_cast<uint32_t>(round.shared.epoch);
    return make_uint4(epoch, static_cast<uint32_t>(piece), static_cast<uint32_t>(source), epoch ^ static_cast<uint32_t>(piece));
  }
  template <class F>
  __device__ void each(F step) const {
    const int64_t pieces = p.bytes / 16, first = pieces * blockIdx.x / gridDim.x, last = pieces * (blockIdx.x + 1) / gridDim.x;
    for (int64_t i = first + threadIdx.x; i < last; i += blockDim.x) step(i);
  }
  __device__ bool by_places() const {
    for (int hop = 1; hop < p.round.world; ++hop) {
      uint4* const there = reinterpret_cast<uint4*>(round.place(round.peer(hop), p.round.rank));
      each([&](int64_t i) { push(there + i, value(p.round.rank, i)); });
    }
    return round.meet(0);
  }
  __device__ bool by_lines() const {
    constexpr bool kHeader = kKind == RoundKind::kLines;
    if (kHeader) round.tell(0);
    for (int hop = 1; hop < p.round.world; ++hop) {
      const int to = round.peer(hop);
      each([&](int64_t i) { round.send(to, i, value(p.round.rank, i)); });
    }
    round.note_begun();
    __syncthreads();  // all data are sent before any thread waits
    for (int hop = 1; hop < p.round.world; ++hop) {
      const int source = round.peer(hop);
      each([&](int64_t i) { compare(round.receive(source, i), source, i); });
    }
    round.hear_the_rest();
    return round.met();
  }
  __device__ void check() const {
    if (kKind != RoundKind::kPlaces) return;
    for (int hop = 1; hop < p.round.world; ++hop) {
      const int source = round.peer(hop);
      const uint4* const here = reinterpret_cast<const uint4*>(round.place(p.round.rank, source));
      each([&](int64_t i) { compare(__ldcg(here + i), source, i); });
    }
  }
  __device__ void compare(uint4 came, int source, int64_t i) const {
    const uint4 want = value(source, i);
    if (came.x != want.x || came.y != want.y || came.z != want.z || came.w != want.w)
      add_counter(p.found, 1);
  }
};

// A packet of 8, 16 or 128 bytes, whose words all follow from one counter. The first half of the grid writes to the next rank,
// one slot per thread (per warp for packets of 128 bytes); the second half reads incoming packets.
template <int kBytes>
struct ProbePackets {
  const LinkParams& p;

  __device__ void run() const {
    const int half = static_cast<int>(gridDim.x) / 2, cta = static_cast<int>(blockIdx.x);
    const int64_t thread = static_cast<int64_t>(cta % half) * blockDim.x + threadIdx.x;
    const int next = (p.round.rank + 1) % p.round.world;
    if (cta < half) write(p.round.arenas[next] + kArrivalBytes, thread);
    else read(p.round.arenas[p.round.rank] + kArrivalBytes, thread);
  }

 private:
  static constexpr int kWords = kBytes == 8 ? 2 : kBytes == 16 ? 4 : 1;  // words per thread
  // Word k of a packet; a packet of 128 bytes has one word in each lane of a warp.
  __device__ static uint32_t word(uint32_t counter, int k) { return counter * 2654435761u + static_cast<uint32_t>(k); }
  __device__ static int place_of(int k) { return kBytes == 128 ? static_cast<int>(threadIdx.x % 32) : k; }

  __device__ void write(uint8_t* base, int64_t thread) const {
    uint32_t* const slot = reinterpret_cast<uint32_t*>(base) + thread * kWords;
    for (int64_t i = 1; i <= p.times; ++i) {
      uint32_t words[kWords];
#pragma unroll
      for (int k = 0; k < kWords; ++k) words[k] = word(static_cast<uint32_t>(i), place_of(k));
      push_words<kWords>(slot, words);
    }
  }
  __device__ void read(const uint8_t* base, int64_t thread) const {
    const uint32_t* const slot = reinterpret_cast<const uint32_t*>(base) + thread * kWords;
    const uint32_t end = word(static_cast<uint32_t>(p.times), 0);
    const uint64_t start = now_ns();
    uint64_t seen = 0, torn = 0;
    uint32_t before = 0;
    bool done = false, late = false;
    while (!done && !late) {  // all lanes of a warp that reads one packet leave the loop together
      uint32_t words[kWords];
      pull_words<kWords>(slot, words);
      const uint32_t here = words[0] - static_cast<uint32_t>(place_of(0));
      const uint32_t first = kBytes == 128 ? __shfl_sync(0xffffffffu, here, 0) : here;
      bool whole = here == first;
#pragma unroll
      for (int k = 1; k < kWords; ++k) whole &= words[k] - static_cast<uint32_t>(k) == first;
      bool blank = words[0] == 0;  // nothing has arrived yet; no packet consists of zeros only
#pragma unroll
      for (int k = 1; k < kWords; ++k) blank &= words[k] == 0;
      if (kBytes == 128) blank = __all_sync(0xffffffffu, blank);
      torn += !whole && !blank;
      seen += first != before && !blank;
      before = first;
      late = now_ns() - start >= p.round.patience;
      done = whole && here == end;
      if (kBytes == 128) late = __any_sync(0xffffffffu, late), done = __all_sync(0xffffffffu, done);
    }
    add_counter(p.found, seen);
    add_counter(p.found + 1, torn);
    if (!done) add_counter(p.found + 2, 1);
  }
};

}  // namespace opfacade
