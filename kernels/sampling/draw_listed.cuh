// Samples a row from the first tokens of each rank's shard: a CTA merges the sorted lists, filters, and draws among the kept
// tokens. The arithmetic is that of rows with a small k.
#pragma once
#include "kernels/sampling/draw_listed_params.h"
#include "kernels/sampling/filter_shared.cuh"

namespace opfacade {

template <class C>
class DrawListed {
 public:
  __device__ __forceinline__ explicit DrawListed(const DrawListedParams& params)
      : p_(params), shared_(filter_shared().short_k), lists_(filter_shared().team_lists()) {}

  __device__ __forceinline__ void run(int64_t row) {
    note(row);
    take(row);
    __syncthreads();
    const uint32_t size = p_.world > 1 ? 2u << (31 - __clz(p_.world - 1)) : 1;
    const int count = TeamLists(shared_, lists_, static_cast<int>(size), 0).merge(shared_.k);
    __syncthreads();
    const uint64_t drawn = count == 0 ? 0 : drawn_of_sorted<C>(shared_, p_.sample.stream, shared_.noted, count);
    if (threadIdx.x == 0) write_token(p_.sample, row, drawn);
  }

 private:
  // Stores the parameters of the row.
  __device__ __forceinline__ void note(int64_t row) {
    if (threadIdx.x < kMostLists) shared_.listed[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
      const Filters<C> filters(p_.sample, row);
      const bool greedy = C::kTemperature && !(p_.sample.temperature[row] > 0.f);
      shared_.seed = p_.sample.seed[row], shared_.offset = p_.sample.offset[row];
      shared_.share = filters.share, shared_.most = filters.most(), shared_.greedy = greedy;
      shared_.k = greedy ? 1 : static_cast<int>(min(filters.limit, uint64_t{kShortK}));
    }
    __syncthreads();
  }
  // Loads the lists of all ranks and ranks their entries.
  __device__ __forceinline__ void take(int64_t row) {
    for (int i = threadIdx.x; i < p_.world * p_.listed; i += kSampleThreads) {
      const int rank = i / p_.listed, at = i % p_.listed;
      const int64_t place = row * p_.listed + at;
      const float a = p_.lists[rank][place] + 0.f;  // -0 becomes 0
      const int column = reinterpret_cast<const int32_t*>(p_.lists[rank])[p_.sample.rows * p_.listed + place];
      if (!is_candidate(a)) continue;
      lists_[kListStep * rank + at] = ranked(a, static_cast<uint32_t>(rank * p_.shard + column));
      if (at + 1 == p_.listed || !is_candidate(p_.lists[rank][place + 1])) shared_.listed[rank] = at + 1;
    }
  }

  const DrawListedParams& p_;
  ShortShared& shared_;
  uint64_t* lists_;
};

template <class C>
__device__ __forceinline__ void draw_listed(const DrawListedParams& p) {
  if (is_valid_row(p.sample, blockIdx.x)) DrawListed<C>(p).run(blockIdx.x);
}

}  // namespace opfacade
