// One round of bytes between the GPUs of one host: afterwards each rank has the bytes that all ranks sent to it.
#pragma once
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ranks/exchange_params.h"
#include "kernels/ranks/round.cuh"

namespace opfacade {

struct Exchange {
  const ExchangeParams& p;
  Round round;
  const int64_t lines, first, last;  // 16-byte lines of a part; range of this CTA

  __device__ explicit Exchange(const ExchangeParams& params)
      : p(params),
        round(params.round, *reinterpret_cast<RoundShared*>(dynamic_shared())),
        lines(params.bytes / 16),
        first(lines * blockIdx.x / kExchangeCtas),
        last(lines * (blockIdx.x + 1) / kExchangeCtas) {}

  __device__ const uint4* part(int to) const { return reinterpret_cast<const uint4*>(p.sent + to * p.step); }
  __device__ uint4* result(int source) const { return reinterpret_cast<uint4*>(p.found + source * p.bytes); }

  __device__ void push_all() const {
    for (int hop = 1; hop < p.round.world; ++hop) {
      const int to = round.peer(hop);
      const uint4* const from = part(to);
      uint4* const there = reinterpret_cast<uint4*>(round.place(to, p.round.rank));
      for (int64_t i = first + threadIdx.x; i < last; i += kExchangeThreads) push(there + i, from[i]);
    }
  }

  __device__ void take() const {
    const int own = p.round.rank;
    for (int source = 0; source < p.round.world; ++source) {
      const uint4* const from = source == own ? part(own) : reinterpret_cast<const uint4*>(round.place(own, source));
      uint4* const to = result(source);
      for (int64_t i = first + threadIdx.x; i < last; i += kExchangeThreads) to[i] = __ldcg(from + i);
    }
  }

  // NaN in every float type, -1 in every integer.
  __device__ void fill() const {
    const uint4 none = make_uint4(~0u, ~0u, ~0u, ~0u);
    for (int source = 0; source < p.round.world; ++source)
      for (int64_t i = first + threadIdx.x; i < last; i += kExchangeThreads) result(source)[i] = none;
  }

  __device__ bool meet_by_places(uint64_t facts) const {
    push_all();
    return round.meet(facts);
  }

  // Small rounds: lines go from registers to the results.
  __device__ bool swap_lines(uint64_t facts) const {
    const int own = p.round.rank;
    round.tell(facts);
    for (int64_t i = first + threadIdx.x; i < last; i += kExchangeThreads) {
      for (int hop = 1; hop < p.round.world; ++hop) round.send(round.peer(hop), i, __ldcg(part(round.peer(hop)) + i));
      result(own)[i] = __ldcg(part(own) + i);
    }
    round.note_begun();
    __syncthreads();  // all data are sent before any thread waits
    if (p.round.world == 2) receive_lines<1>();
    else receive_lines<4>();
    round.hear_the_rest();
    return round.met();
  }
  template <int kMany>
  __device__ void receive_lines() const {
    for (int64_t i = first + threadIdx.x; i < last; i += kExchangeThreads) {
      for (int hop = 1; hop < p.round.world; hop += kMany) {
        uint4 found[kMany];
        round.receive_some(found, hop, i);
#pragma unroll
        for (int k = 0; k < kMany; ++k)
          if (hop + k < p.round.world) result(round.peer(hop + k))[i] = found[k];
      }
    }
  }

  __device__ void run() const {
    wait_for_previous();
    allow_dependents();  // the next kernel waits for the end of this one, after which all earlier kernels have ended
    if (!round.begin()) return fill();
    const uint64_t facts = p.facts == nullptr ? 0 : *p.facts;
    const bool met = p.flagged ? swap_lines(facts) : meet_by_places(facts);
    round.end((last - first) * 16);
    if (!met) return fill();
    if (!p.flagged) take();
  }
};

}  // namespace opfacade
