// The kernel of rows that are held: cuts, race over the kept, and what is reported.
#pragma once
#include "kernels/sampling/held.cuh"

namespace opfacade {

// The kept set of one row. min_p is a compare of its own: a_i >= a_max + log2(min_p).
struct Kept {
  Cut cut;
  float most;  // distance from the most likely token
  template <class Held>
  __device__ __forceinline__ bool has(uint32_t token, float a, const Held& held) const {
    return held.distance(a) <= most && cut.keeps(ordered(a), token);
  }
};

// The amount below which a prefix of share p is cut, at least 1, so that the first candidate is kept.
__device__ __forceinline__ uint64_t need_of(float p, uint64_t mass) {
  const double need = static_cast<double>(mass) * static_cast<double>(fmaxf(p, 0.f));
  const uint64_t whole = static_cast<uint64_t>(need);
  return max(uint64_t{1}, whole + (static_cast<double>(whole) < need));
}

// The candidates that the k of a row keeps, at most.
template <class C>
__device__ __forceinline__ uint64_t limit_of(const SampleParams& p, int64_t row) {
  int64_t k = p.vocab;
  if constexpr (C::kTopK) k = p.top_k[row];
  if (k <= 0 || k > p.vocab) k = p.vocab;
  return static_cast<uint64_t>(min(k, int64_t{p.max_top_k}));
}

// Whether a share of the mass of all candidates is needed, or may be: a k may keep all of them.
template <class C>
__device__ __forceinline__ bool needs_mass(const SampleParams& p, int64_t row) {
  if constexpr (!C::kTopP) return false;
  return p.top_p[row] < 1.f;
}

// One body for both targets: count, then mass.
template <class C>
__device__ __forceinline__ Kept kept_of(const SampleParams& p, int64_t row, HeldRow<C>& held, uint64_t mass) {
  Kept kept{{0, ~0u}, -minus_infinity()};
  bool surveyed = false;
  float share = 1.f;
  if constexpr (C::kTopP) share = p.top_p[row];
#pragma unroll 1
  for (int by_mass = C::kTopK ? 0 : 1; by_mass < (C::kTopP ? 2 : 1); ++by_mass) {
    const Target target{by_mass != 0, by_mass ? need_of(share, mass) : limit_of<C>(p, row)};
    if (by_mass ? !(share < 1.f) : target.need >= static_cast<uint64_t>(p.vocab)) continue;
    if (!surveyed) held.survey(target);
    Amount own{0, mass};
    kept.cut = kept.cut.earlier(held.cut(target, own));
    if (!by_mass && !C::kJoint) mass = own.mass, surveyed = kept.cut.value != 0;
  }
  if constexpr (C::kMinP) {
    const float least = fminf(p.min_p[row], 1.f);
    if (least > 0.f) kept.most = HeldRow<C>::distance_of(least);
  }
  return kept;
}

template <class C>
class Reporter {
 public:
  __device__ __forceinline__ Reporter(const SampleParams& p, int64_t row, HeldRow<C>& held) : p_(p), row_(row), held_(held) {}
  __device__ __forceinline__ bool writes() const { return blockIdx.x % p_.ctas == 0 && threadIdx.x == 0; }

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

  // The next of the order, again and again: few tokens.
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
      for (int i = threadIdx.x; i < p_.top_n; i += kSampleThreads)
        p_.top_tokens[row_ * p_.top_tokens_row + i] = -1, p_.top_logprobs[row_ * p_.top_logprobs_row + i] = minus_infinity();
    }
    if (C::kProbs) {
      const int64_t step = int64_t{kSampleThreads} * p_.ctas;
      for (int64_t i = blockIdx.x % p_.ctas * kSampleThreads + threadIdx.x; i < p_.vocab; i += step)
        p_.probs[row_ * p_.probs_row + i] = 0.f;
    }
  }

 private:
  const SampleParams& p_;
  int64_t row_;
  HeldRow<C>& held_;
};

// The largest key of the kept tokens. A word serves four tokens, so a group computes them once.
template <class C>
__device__ __forceinline__ uint64_t raced(const Row<C>& row, HeldRow<C>& held, const Kept& kept) {
  const Philox philox(row.p.seed[row.row], row.p.offset[row.row], row.p.stream);
  uint64_t best = 0;
  held.each_group([&](uint32_t first, const float (&a)[4]) {
    bool has[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) has[j] = is_candidate(a[j]) && kept.has(first + j, a[j], held);
    if (!(has[0] || has[1] || has[2] || has[3])) return;
    uint32_t words[4];
    philox.words(first / 4, words);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (has[j]) best = Larger()(best, ranked(fmaf(a[j], kLog2E, minus_log2_exponential(words[j])), first + j));
  });
  return held.cluster().reduce(best, Larger());
}

template <class C>
__device__ __forceinline__ void draw_held(const SampleParams& p, const Row<C>& row, HeldRow<C>& held) {
  const uint64_t first = held.hold();
  Reporter<C> report(p, row.row, held);
  if (first == 0) {
    if (report.writes()) write_token(p, row.row, 0);
    return report.nothing();
  }
  const bool filters = C::kProbs || !row.greedy();
  const uint64_t all = C::kReport || (filters && needs_mass<C>(p, row.row)) ? held.total_mass() : 0;
  const Kept kept = filters ? kept_of<C>(p, row.row, held, all) : Kept{{0, ~0u}, 0.f};
  const uint64_t drawn = row.greedy() ? first : raced<C>(row, held, kept);
  if (report.writes()) write_token(p, row.row, drawn);
  if constexpr (C::kReport) report.token(drawn, held.again(token_of(drawn)), all);
  if constexpr (C::kTopN) report.most_likely(first, all);
  if constexpr (C::kProbs) report.probabilities(kept);
}

template <class C>
__device__ __forceinline__ void sample_filtered(const SampleParams& p) {
  HeldShared& shared = *reinterpret_cast<HeldShared*>(dynamic_shared());
  const int64_t at = blockIdx.x / p.ctas;
  if (!is_valid_row(p, at)) return;
  flag_biases<C>(p, at, shared.flags);
  const Row<C> row(p, at, shared.flags);
  HeldRow<C> held(row, shared, reinterpret_cast<float*>(dynamic_shared() + kHeldShared));
  draw_held<C>(p, row, held);
  held.cluster().sync();  // no CTA exits while others read its shared memory
}

}  // namespace opfacade
