// The kernel for held rows: cuts, the race over the kept tokens, and the report.
#pragma once
#include "kernels/sampling/filter_shared.cuh"

namespace opfacade {

template <class C>
class Reporter {
 public:
  __device__ __forceinline__ Reporter(const SampleParams& p, int64_t row, HeldRow<C>& held) : p_(p), row_(row), held_(held) {}
  __device__ __forceinline__ bool writes() const { return blockIdx.x % p_.ctas == 0 && thread() == 0; }

  __device__ __forceinline__ float logprob(float a, float log2_total) const {
    return -__fmul_rn(__fadd_rn(held_.below(a), log2_total), kLn2);
  }
  static __device__ __forceinline__ float log2_of(uint64_t mass) { return log2f(static_cast<float>(mass) * 0x1p-40f); }

  // Logprob of the drawn token, and how many candidates precede it.
  __device__ __forceinline__ void token(uint64_t drawn, float a, uint64_t mass) {
    const uint64_t own = ranked(a, token_of(drawn));
    uint64_t before = 0;
    held_.each([&](uint32_t token, float other) { before += ranked(other, token) > own; });
    before = held_.cluster().reduce(before, Sum());
    if (!writes()) return;
    p_.logprob[row_] = logprob(a, log2_of(mass));
    p_.rank[row_] = static_cast<int32_t>(before);
  }

  // Finds the next token of the order top_n times; top_n is small.
  __device__ __forceinline__ void most_likely(uint64_t first, uint64_t mass) {
    uint64_t last = first;
#pragma unroll 1
    for (int i = 0; i < p_.top_n; ++i) {
      if (writes()) {
        p_.top_tokens[row_ * p_.top_tokens_row + i] = last == 0 ? -1 : static_cast<int32_t>(token_of(last));
        p_.top_logprobs[row_ * p_.top_logprobs_row + i] =
            last == 0 ? minus_infinity() : logprob(key_of(last), log2_of(mass));
      }
      uint64_t next = 0;
      held_.each([&](uint32_t token, float a) {
        const uint64_t own = ranked(a, token);
        if (own < last) next = Larger()(next, own);
      });
      last = held_.cluster().reduce(next, Larger());
    }
  }

  __device__ __forceinline__ void probabilities(const Kept& kept) {
    uint64_t mass = 0;
    held_.each([&](uint32_t token, float a) { mass += kept.has(token, a, held_) ? held_.mass(a) : 0; });
    mass = held_.cluster().reduce(mass, Sum());
    const float scale = __fdiv_rn(kMassUnit, static_cast<float>(max(mass, uint64_t{1})));
    float* const probs = p_.probs + row_ * p_.probs_row;
    held_.each_group([&](uint32_t first, const float (&a)[4]) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (first + j >= static_cast<uint32_t>(p_.vocab)) continue;
        const bool has = is_candidate(a[j]) && kept.has(first + j, a[j], held_);
        probs[first + j] = has ? held_.weight(a[j]) * scale : 0.f;
      }
    });
  }

  // Outputs of a row without candidates.
  __device__ __forceinline__ void nothing() {
    if (writes()) {
      if (C::kReport) p_.logprob[row_] = __uint_as_float(0x7fc00000u), p_.rank[row_] = -1;
    }
    if (C::kTopN && blockIdx.x % p_.ctas == 0) {
      for (int i = thread(); i < p_.top_n; i += kSampleThreads)
        p_.top_tokens[row_ * p_.top_tokens_row + i] = -1, p_.top_logprobs[row_ * p_.top_logprobs_row + i] = minus_infinity();
    }
    if (C::kProbs) {
      const int64_t step = int64_t{kSampleThreads} * p_.ctas;
      for (int64_t i = blockIdx.x % p_.ctas * kSampleThreads + thread(); i < p_.vocab; i += step)
        p_.probs[row_ * p_.probs_row + i] = 0.f;
    }
  }

 private:
  const SampleParams& p_;
  int64_t row_;
  HeldRow<C>& held_;
};

// The key of an adjusted logit with its noise.
__device__ __forceinline__ float key_of_heated(float a, float noise) { return fmaf(a, kLog2E, noise); }

// The largest key of the kept tokens.
template <class C>
__device__ __forceinline__ uint64_t raced(HeldRow<C>& held, const Kept& kept) {
  if (thread() == 0) held.shared().best = 0;
  __syncthreads();
  Race<C::kShortK> race(held.row().p, held.row().row, &held.shared().best);
  held.each_group([&](uint32_t first, float (&a)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) a[j] = is_candidate(a[j]) && kept.has(first + j, a[j], held) ? a[j] : minus_infinity();
    race.group(first, a, kLog2E, key_of_heated);
  });
  return held.cluster().reduce(race.found(), Larger());
}

// The same for a list, by one CTA.
template <class C>
__device__ __forceinline__ uint64_t raced_of_list(HeldRow<C>& held, int count, const Kept& kept) {
  const SampleParams& p = held.row().p;
  const Philox philox(p.seed[held.row().row], p.offset[held.row().row], p.stream);
  uint64_t best = 0;
#pragma unroll 1
  for (int i = thread(); i < count; i += kSampleThreads) {
    const uint32_t token = token_of(held.listed().all[i]);
    const float a = key_of(held.listed().all[i]);
    if (!kept.has(token, a, held)) continue;
    best = Larger()(best, ranked(fmaf(a, kLog2E, minus_log2_exponential(philox.word(token))), token));
  }
  return ClusterRow(held.shared().reduce, 1).reduce(best, Larger());
}

// Whether the first CTA alone finishes a row whose candidates are listed: the other CTAs can continue with other rows.
template <class C>
constexpr bool kEndsAlone = !C::kReport && !C::kProbs;

// Applies cuts and race to a list of candidates. Returns false if the candidates that the cuts need do not fit the list.
template <class C>
__device__ __forceinline__ bool draw_listed(HeldRow<C>& held, uint64_t all, Kept& kept, uint64_t& drawn) {
  const bool ends = !kEndsAlone<C> || blockIdx.x % held.row().p.ctas == 0;
  const int count = held.list_of(filters_of(held).first(all), ends);
  if (count == 0) return false;
  if (kEndsAlone<C>) held.cluster().sync();  // the lists have been copied
  if (!ends) return true;
  kept = filters_of(held).kept_of_list(held, count, all);
  if (!held.row().greedy()) drawn = raced_of_list<C>(held, count, kept);
  return true;
}

// Whether the filters of a row without a k keep a candidate. place: the candidate as a value of `ranked`.
template <class C>
__device__ __forceinline__ bool is_kept(HeldRow<C>& held, uint64_t place, float a) {
  const Filters<C> filters = filters_of(held);
  if (!(held.distance(a) <= filters.most())) return false;
  if (!filters.by_mass) return true;
  uint64_t before = 0, all = 0;
  held.each_of_four([&](uint32_t token, float other) {
    const uint64_t mass = held.mass(other);
    all += mass;
    if (ranked(other, token) > place) before += mass;
  });
  before = held.cluster().reduce(before, Sum());
  return before < need_of(filters.share, held.cluster().reduce(all, Sum()));
}

// The winner of the race over the kept tokens. winner: the winner over all candidates. Kept tokens precede all others in the
// order, so if this winner is kept, it is the result. Otherwise the race is repeated among the tokens that precede it.
template <class C>
__device__ __forceinline__ uint64_t winner_of_kept(HeldRow<C>& held, uint64_t winner) {
  Kept kept{{0, ~0u}, -minus_infinity()};
#pragma unroll 1
  for (;;) {
    const float a = held.again(token_of(winner));
    const uint64_t place = ranked(a, token_of(winner));
    if (is_kept<C>(held, place, a)) return winner;
    kept.cut = {static_cast<uint32_t>((place + 1) >> 32), token_of(place + 1)};
    winner = raced<C>(held, kept);
  }
}

// Returns whether other CTAs may still read this one's shared memory.
template <class C>
__device__ __forceinline__ bool draw_held(HeldRow<C>& held) {
  const Row<C>& row = held.row();
  constexpr bool kRaces = !C::kTopK && !C::kProbs;  // the race comes first, then a test whether its winner is kept
  const bool draws = !row.greedy();
  Race<> race(row.p, row.row, &held.shared().best);
  const uint64_t first = held.hold([&](uint32_t token, const float (&a)[4]) {
    if (kRaces && draws) race.group(token, a, kLog2E, key_of_heated);
  });
  Reporter<C> report(row.p, row.row, held);
  if (first == 0) {
    if (report.writes()) write_token(row.p, row.row, 0);
    report.nothing();
    return true;
  }
  const bool cuts = !kRaces && (C::kProbs || draws) && filters_of(held).cuts();
  const uint64_t all = C::kReport || (cuts && filters_of(held).of_all()) ? held.total_mass() : 0;
  Kept kept{{0, ~0u}, draws || C::kProbs ? filters_of(held).most() : 0.f};
  uint64_t drawn = first;
  bool listed = false;
  if constexpr (kRaces) {
    if (draws) drawn = winner_of_kept<C>(held, held.cluster().reduce(race.found(), Larger()));
  } else {
    if constexpr (C::kTopK || C::kTopP) listed = cuts && draw_listed<C>(held, all, kept, drawn);
    if (cuts && !listed) kept = filters_of(held).kept(held, all);
    if (draws && !listed) drawn = raced<C>(held, kept);
  }
  if (report.writes()) write_token(row.p, row.row, drawn);
  if constexpr (C::kReport) report.token(drawn, held.again(token_of(drawn)), all);
  if constexpr (C::kTopN) report.most_likely(first, all);
  if constexpr (C::kProbs) report.probabilities(kept);
  return !(listed && kEndsAlone<C>);
}

// Draws a row that the cluster holds.
template <class C>
__device__ __forceinline__ void draw_row(const SampleParams& p, uint32_t at) {
  HeldShared& shared = filter_shared().held;
  BiasIndex& index = bias_index(shared);
  flag_biases<C>(p, at, shared.flags, index, first_biased<C>(p, at));
  const Row<C> row(p, at, shared.flags, &index);
  HeldRow<C> held(row, shared, filter_shared().lists.view(), filter_shared().logits());
  if (draw_held<C>(held)) held.cluster().sync();  // no CTA exits while others read its shared memory
}

template <class C>
__device__ __forceinline__ void sample_held(const SampleParams& p) {
  const uint32_t at = blockIdx.x / p.ctas;
  if (is_valid_row(p, at)) draw_row<C>(p, at);
}

}  // namespace opfacade
