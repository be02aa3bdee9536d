// A round of bytes between the GPUs of one host: every rank has then what all have sent to it.
#pragma once
#include "kernels/ranks/exchange_params.h"
#include "kernels/ranks/round.cuh"

namespace opfacade {

struct Exchange {
  const ExchangeParams& p;
  Round round;
  const int64_t lines, first, last;  // of 16 bytes: of a part, and those of this CTA

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

  __device__ void run() const {
    if (!round.begin()) return fill();
    push_all();
    const bool met = round.meet(p.facts == nullptr ? 0 : *p.facts);
    round.end((last - first) * 16);
    if (!met) return fill();
    take();
  }
};

}  // namespace opfacade
