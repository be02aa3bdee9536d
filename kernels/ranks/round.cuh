// Rounds between the GPUs of one host: push data to all peers, then wait for arrivals in local memory, with a time limit. Any
// bit pattern may be data, because separate flags mark arrivals.
//
// There are two formats. Bulk data are stored first; a fence precedes the arrival flag. A flagged line contains 8 bytes of data
// and their flags: twice the bytes, but no fence. Small rounds use flagged lines.
//
// A half of an arena is written again two rounds later. By then each peer has read it: the peer has announced the round in
// between, and it begins that round only after its CTAs have read the half. A reader clears the flags, so that no flag of an
// earlier round remains.
#pragma once
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/peer.cuh"
#include "kernels/ranks/round_params.h"

namespace opfacade {

constexpr uint64_t kGlance = 1000000;  // ns after which a wait checks whether the host has poisoned the group
constexpr uint32_t kPolls = 32;        // polls between two reads of the clock: all SMs share it, and reading is slow

// A wait of one thread. start: time of the first clock read.
struct Wait {
  uint64_t start = 0;
  uint32_t polls = 0;
};

struct RoundShared {
  uint64_t epoch, facts, begun;  // begun: of CTA 0, the time at which it announced the round
  uint32_t flag, missing, odd, over;
  uint32_t waited[kMostRanks];  // ns
};

static_assert(sizeof(RoundShared) <= kRoundShared && kRoundShared % 16 == 0, "what launches reserve");

struct Round {
  const RoundParams& p;
  RoundShared& shared;
  const int cta = blockIdx.x, thread = threadIdx.x;
  mutable bool listens = false;  // whether this thread has announced the round and still waits for its peer's announcement

  __device__ Round(const RoundParams& params, RoundShared& of_cta) : p(params), shared(of_cta) {}

  __device__ int parity() const { return static_cast<int>(shared.epoch & 1); }
  __device__ Arrival* arrival(int at, int source) const {
    return reinterpret_cast<Arrival*>(p.arenas[at]) + (int64_t{parity()} * kMostRanks + source) * kMostCtas + cta;
  }
  // The bytes that `source` sends to `at` in this round.
  __device__ uint8_t* place(int at, int source) const {
    return p.arenas[at] + kArrivalBytes + (int64_t{parity()} * p.world + source) * p.place;
  }
  // The first of the flagged lines of a chunk that `source` sends to `at` in this round; the second is kChunksOfAGroup behind.
  __device__ uint4* line(int at, int source, int64_t chunk) const {
    const int64_t place = int64_t{parity()} * p.world + source;
    uint8_t* const lines = p.arenas[at] + kArrivalBytes + 2 * int64_t{p.world} * p.place + place * p.flagged;
    return reinterpret_cast<uint4*>(lines) + chunk + (chunk & -int64_t{kChunksOfAGroup});
  }
  // hop: at most world. A division would take as long as the rest of an address.
  __device__ int peer(int hop) const { return p.rank + hop < p.world ? p.rank + hop : p.rank + hop - p.world; }

  // Starts a round. Returns false if an earlier round failed.
  __device__ bool begin() const {
    if (thread == 0) {
      const uint64_t last = __ldcg(p.epochs + cta);  // both loads are in flight together
      shared.over = *const_cast<volatile uint8_t*>(p.bad);
      start(last + 1);
    }
    __syncthreads();
    return shared.over == 0;
  }
  // Starts a further round of the same launch. If both rounds use flagged lines, the caller needs a fence between them: nothing
  // else orders the stores that clear flags before the peers' next stores.
  __device__ void next() const {
    __syncthreads();
    if (thread == 0) start(shared.epoch + 1);
    __syncthreads();
  }

  // After bulk pushes: announces the round to all peers, and waits for theirs. Returns whether all ranks made this call with
  // the same facts.
  __device__ bool meet(uint64_t facts) const {
    keep(facts);
    __syncthreads();
    if (is_peer()) {
      fence_system();
      tell(facts);
    }
    note_begun();
    hear(facts);
    return met();
  }
  // Before flagged lines: announces the round to all peers.
  __device__ void tell(uint64_t facts) const {
    keep(facts);
    if (!is_peer()) return;
    listens = true;
    uint4* const there = reinterpret_cast<uint4*>(arrival(thread, p.rank));
    tell_flagged(there, low(p.digest), high(p.digest), shared.flag);
    tell_flagged(there + 1, low(facts), high(facts), shared.flag);
  }
  // Sends a chunk in flagged lines.
  __device__ void send(int to, int64_t chunk, uint4 value) const {
    uint4* const there = line(to, p.rank, chunk);
    push_flagged(there, value.x, value.y, shared.flag), push_flagged(there + kChunksOfAGroup, value.z, value.w, shared.flag);
  }
  // After fenced pushes: waits for the peers' announcements, and so for their data.
  __device__ void hear(uint64_t facts) const {
    if (!is_peer()) return;
    uint4* const here = reinterpret_cast<uint4*>(arrival(p.rank, thread));
    uint2 digest, other;
    Wait wait;
    const uint64_t begun = cta == 0 ? now_ns() : 0;
    while (!(told_flagged(here, shared.flag, digest) & told_flagged(here + 1, shared.flag, other)))
      if (is_over(wait, 1u << thread)) return;
    if (cta == 0) shared.waited[thread] = static_cast<uint32_t>(now_ns() - begun);
    note_told(here, digest, other, facts);
  }
  // After the flagged lines have arrived: waits for the announcement of the peer, if `receive` has not found it yet.
  __device__ void hear_the_rest() const {
    Wait wait;
    while (listens) {
      Told told;
      look_for(told);
      if (!take(told) && is_over(wait, 1u << thread)) return;
    }
  }
  // Waits for a chunk. After one wait has timed out, later ones return immediately. The same loop polls for the peer's
  // announcement: a separate poll would take as long as one for data.
  __device__ uint4 receive(int source, int64_t chunk) const {
    uint4* const from = line(p.rank, source, chunk);
    uint2 first, second;
    Wait wait;
    for (;;) {
      Told told;
      look_for(told);
      const bool came = came_flagged(from, shared.flag, first) & came_flagged(from + kChunksOfAGroup, shared.flag, second);
      take(told);
      if (came || is_over(wait, 1u << source)) break;
    }
    forget_chunk(from);
    return make_uint4(first.x, first.y, second.x, second.y);
  }
  // Like receive, for several peers together, from `hop` on; entries past the last peer stay unchanged. Polling one peer after
  // another would take the sum of the times.
  template <int kMany>
  __device__ void receive_some(uint4 (&found)[kMany], int hop, int64_t chunk) const {
    if constexpr (kMany == 1) {
      found[0] = receive(peer(hop), chunk);
      return;
    }
    Wait wait;
    uint32_t missing;
    do {
      missing = 0;
      Told told;
      look_for(told);
#pragma unroll
      for (int k = 0; k < kMany; ++k) {
        const bool wanted = hop + k < p.world;
        const int source = peer(wanted ? hop + k : hop);
        const bool came = look_for_chunk(wanted, line(p.rank, source, chunk), found[k]);
        missing |= static_cast<uint32_t>(wanted && !came) << source;
      }
      take(told);
    } while (missing != 0 && !is_over(wait, missing));
#pragma unroll
    for (int k = 0; k < kMany; ++k) {
      if (hop + k >= p.world) break;
      forget_chunk(line(p.rank, peer(hop + k), chunk));
    }
  }
  // Like receive, for all peers together, and for `there` chunks that are `step` chunks apart. Entries of this rank stay
  // unchanged.
  template <int kPlaces, int kWorld>
  __device__ void receive_all(uint4 (&found)[kPlaces][kWorld], int64_t chunk, int step, int there) const {
    Wait wait;
    uint32_t missing;
    do {
      missing = 0;
      Told told;
      look_for(told);
#pragma unroll
      for (int k = 0; k < kPlaces; ++k) {
#pragma unroll
        for (int r = 0; r < kWorld; ++r) {
          const bool wanted = k < there && r != p.rank;
          const bool came = look_for_chunk(wanted, line(p.rank, r, chunk + k * step), found[k][r]);
          missing |= static_cast<uint32_t>(wanted && !came) << r;
        }
      }
      take(told);
    } while (missing != 0 && !is_over(wait, missing));
#pragma unroll
    for (int k = 0; k < kPlaces; ++k) {
      if (k >= there) break;
#pragma unroll
      for (int r = 0; r < kWorld; ++r) {
        if (r != p.rank) forget_chunk(line(p.rank, r, chunk + k * step));
      }
    }
  }
  // After all waits of a round: returns whether all ranks made this call with the same facts.
  __device__ bool met() const {
    __syncthreads();
    const bool well = (shared.missing | shared.odd) == 0;
    if (thread == 0) note(well);
    if (thread == 0 && cta == 0 && well) count_waits();
    return well;
  }
  // Returns true if a wait for `ranks` has timed out, which is recorded, or cannot succeed any more.
  __device__ bool is_over(Wait& wait, uint32_t ranks) const {
    if (++wait.polls % kPolls != 0) return false;
    const uint64_t time = now_ns();
    if (wait.start == 0) wait.start = time;
    const uint64_t waited = time - wait.start;
    if (waited <= kGlance) return false;
    look();
    const volatile RoundShared& now = shared;
    if (now.odd != 0 || (ranks & ~now.missing) == 0) return true;
    if (waited <= p.patience && *const_cast<volatile int64_t*>(&p.page->poison) == 0) return false;
    atomicOr(&shared.missing, ranks);
    return true;
  }
  // The page of the host is written while the CTA waits: a fence would have to wait for an earlier store too.
  __device__ void note_begun() const {
    if (thread == p.rank && cta == 0) *const_cast<volatile int64_t*>(&p.page->begun) = static_cast<int64_t>(shared.epoch);
  }

  // The last step of a launch, called by all threads. sent: bytes from this CTA to each peer.
  __device__ void end(int64_t sent) const {
#pragma unroll 1  // an unrolled loop divides to count its steps
    for (int at = cta + thread * static_cast<int>(gridDim.x); at < kMostCtas; at += static_cast<int>(blockDim.x * gridDim.x))
      p.epochs[at] = shared.epoch;
    if (thread != 0) return;
    if (sent > 0) count(0, static_cast<uint64_t>(sent) * (p.world - 1));
    if (cta == 0 && !shared.missing) *const_cast<volatile int64_t*>(&p.page->ended) = static_cast<int64_t>(shared.epoch);
  }

 private:
  // Loads a chunk if it is wanted, and returns whether it has arrived. value: stays unchanged if it is not wanted.
  __device__ bool look_for_chunk(bool wanted, const uint4* from, uint4& value) const {
    uint2 first, second;
    const bool came = came_if(wanted, from, shared.flag, first) & came_if(wanted, from + kChunksOfAGroup, shared.flag, second);
    if (wanted) value = make_uint4(first.x, first.y, second.x, second.y);
    return came;
  }
  __device__ static void forget_chunk(uint4* from) { forget_flagged(from), forget_flagged(from + kChunksOfAGroup); }
  __device__ static uint32_t low(uint64_t word) { return static_cast<uint32_t>(word); }
  __device__ static uint32_t high(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
  __device__ static uint64_t whole(uint2 halves) { return uint64_t{halves.y} << 32 | halves.x; }
  // The announcement of this thread's peer, if it has arrived.
  struct Told {
    uint2 digest, facts;
    bool came;
  };
  __device__ void look_for(Told& told) const {
    const uint4* const here = reinterpret_cast<const uint4*>(arrival(p.rank, listens ? thread : 0));
    const bool first = came_if(listens, here, shared.flag, told.digest);
    told.came = came_if(listens, here + 1, shared.flag, told.facts) & first;
  }
  // Records an announcement. Returns true if none is outstanding.
  __device__ bool take(const Told& told) const {
    if (!listens) return true;
    if (!told.came) return false;
    if (cta == 0) shared.waited[thread] = static_cast<uint32_t>(now_ns() - shared.begun);
    note_told(reinterpret_cast<uint4*>(arrival(p.rank, thread)), told.digest, told.facts, shared.facts);
    return true;
  }
  __device__ void note_told(uint4* here, uint2 digest, uint2 other, uint64_t facts) const {
    listens = false;
    forget_flagged(here), forget_flagged(here + 1);
    if (whole(digest) != p.digest || whole(other) != facts) atomicOr(&shared.odd, 1u << thread);
  }
  __device__ bool is_peer() const { return thread < p.world && thread != p.rank; }

  __device__ void count(int counter, uint64_t more) const {
    add_counter(p.epochs + kMostCtas + counter, more);
  }
  __device__ void count_waits() const {
    int last = p.rank;
    for (int r = 0; r < p.world; ++r) {
      if (r == p.rank) continue;
      count(1 + r, shared.waited[r]);
      if (last == p.rank || shared.waited[r] > shared.waited[last]) last = r;
    }
    if (last != p.rank) count(1 + kMostRanks + last, 1);
  }
  __device__ void keep(uint64_t facts) const {
    if (thread != p.rank) return;
    shared.facts = facts;
    if (cta == 0) shared.begun = now_ns();
  }
  // Records peers that made another call: their lines may never arrive.
  __device__ void look() const {
    for (int r = 0; r < p.world; ++r) {
      const uint4* const from = reinterpret_cast<const uint4*>(arrival(p.rank, r));
      uint2 digest, other;
      if (r == p.rank || !(told_flagged(from, shared.flag, digest) & told_flagged(from + 1, shared.flag, other))) continue;
      if (whole(digest) != p.digest || whole(other) != shared.facts) atomicOr(&shared.odd, 1u << r);
    }
  }

  // A flag is never 0, the flag of a line that was read.
  __device__ void start(uint64_t epoch) const {
    shared.epoch = epoch, shared.flag = static_cast<uint32_t>(epoch % 0xFFFFFFFFu) + 1;
    shared.missing = 0, shared.odd = 0;
  }

  __device__ void note(bool met) const {
    if (shared.missing) *const_cast<volatile int64_t*>(&p.page->failed[cta]) = static_cast<int64_t>(shared.missing);
    if (shared.odd) *const_cast<volatile int64_t*>(&p.page->odd) = static_cast<int64_t>(shared.odd);
    if (!met) *const_cast<volatile uint8_t*>(p.bad) = 1;
  }
};

}  // namespace opfacade
