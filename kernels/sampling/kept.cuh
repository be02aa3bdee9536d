// The kept set of a row: top-k and top-p cut the order, the earlier cut applies, and min_p bounds the rest.
#pragma once
#include "kernels/sampling/held.cuh"

namespace opfacade {

// min_p is a separate comparison: a_i >= a_max + log2(min_p).
struct Kept {
  Cut cut;
  float most;  // maximum distance from the most likely token
  template <class Held>
  __device__ __forceinline__ bool has(uint32_t token, float a, const Held& held) const {
    return held.distance(a) <= most && cut.keeps(ordered(a), token);
  }
};

// The filters that are active for a row.
template <class C>
struct Filters {
  bool by_count = false, by_mass = false;
  uint64_t limit;  // maximum number of kept candidates
  float share = 1.f, least = 0.f;

  __device__ __forceinline__ Filters(const SampleParams& p, int64_t row) {
    int64_t k = p.vocab;
    if constexpr (C::kTopK) k = p.top_k[row];
    if (k <= 0 || k > p.vocab) k = p.vocab;
    limit = static_cast<uint64_t>(min(k, int64_t{p.max_top_k}));
    if constexpr (C::kTopK) by_count = limit < static_cast<uint64_t>(p.vocab);
    if constexpr (C::kTopP) share = p.top_p[row], by_mass = share < 1.f;
    if constexpr (C::kMinP) least = p.min_p[row] > 0.f ? fminf(p.min_p[row], 1.f) : 0.f;  // fminf makes NaN 1
  }

  // The maximum distance from the most likely token that min_p allows.
  __device__ __forceinline__ float most() const { return least > 0.f ? HeldRow<C>::distance_of(least) : -minus_infinity(); }
  __device__ __forceinline__ bool cuts() const { return by_count || by_mass; }
  // Whether top-p is a share of the mass of all candidates.
  __device__ __forceinline__ bool of_all() const { return by_mass && (C::kJoint || !by_count); }
  // The target that is cut first. all: the mass of all candidates, if top-p is a share of it.
  __device__ __forceinline__ Target first(uint64_t all) const {
    return {!by_count, by_count ? limit : need_of(share, all)};
  }

  // Finds the kept set by passes over the row.
  __device__ __forceinline__ Kept kept(HeldRow<C>& held, uint64_t all) const {
    Kept kept{{0, ~0u}, most()};
    uint64_t mass = all;
#pragma unroll 1
    for (int step = by_count ? 0 : 1; step < (by_mass ? 2 : 1); ++step) {
      Amount own{0, 0};
      const Target target{step == 1, step == 1 ? need_of(share, mass) : limit};
      kept.cut = kept.cut.earlier(held.cut(target, own));
      if (step == 1 || C::kJoint || !by_mass) continue;
      mass = kept.cut.value != 0 ? own.mass : held.total_mass();  // a k may keep all candidates
    }
    return kept;
  }

  // Finds the kept set from the candidates that the first target needs, which are listed and sorted.
  __device__ __forceinline__ Kept kept_of_list(HeldRow<C>& held, int count, uint64_t all) const {
    uint64_t* const list = held.listed().all;
    sort_list(list, count, 1);
    if (by_count) count = min(count, static_cast<int>(limit));
    if (by_mass) {
      const SortedMasses<HeldRow<C>> masses(held, count);
      count = masses.reach(need_of(share, of_all() ? all : masses.total()));
    }
    const uint64_t last = list[count - 1];
    return {{static_cast<uint32_t>(last >> 32), token_of(last)}, most()};
  }
};

// The filters are read again at each use: registers are scarce.
template <class C>
__device__ __forceinline__ Filters<C> filters_of(const HeldRow<C>& held) {
  return Filters<C>(held.row().p, held.row().row);
}

// Called in every CTA of the row, which must have a candidate.
template <class C>
__device__ __forceinline__ Kept kept_of(HeldRow<C>& held) {
  const Filters<C> filters(held.row().p, held.row().row);
  if (!filters.cuts()) return {{0, ~0u}, filters.most()};
  const uint64_t all = filters.of_all() ? held.total_mass() : 0;
  const int count = held.list_of(filters.first(all), true);
  return count == 0 ? filters.kept(held, all) : filters.kept_of_list(held, count, all);
}

}  // namespace opfacade
