// Sampling with p, min_p or both as the only filters: a row is streamed, not held. Kept tokens are a prefix of the order, so
// the drawn token is on the front of the row, which a race notes. A second pass sums, in f32, the masses before the last few
// entries of the front; the last entry that is kept is drawn. If these sums are too inexact, exact masses are summed; if the
// front overflows, every pass is exact.
#pragma once
#include "kernels/sampling/front_race.cuh"
#include "kernels/sampling/joint.cuh"
#include "kernels/sampling/own_row.cuh"
#include "kernels/sampling/rough.cuh"

namespace opfacade {

// The filters of a row, and the octaves of its most likely token, in shared memory: registers are scarce.
struct Limits {
  float share, most, top;
  uint64_t place;  // position that the exact passes examine
};

struct KeptShared {
  ReduceShared reduce;
  FrontShared front;
  JointShared joint;
  Limits limits;
};
static_assert(sizeof(KeptShared) <= kKeptShared, "as the binding launches it");

__device__ __forceinline__ KeptShared& kept_shared() { return *reinterpret_cast<KeptShared*>(dynamic_shared()); }

// The row of this CTA, and its range of tokens.
__device__ __forceinline__ uint32_t row_of(const SampleParams& p) { return blockIdx.x >> (31 - __clz(p.ctas)); }
__device__ __forceinline__ uint32_t first_of(const SampleParams& p) { return rank_of(p) * p.slice; }
__device__ __forceinline__ uint32_t end_of(const SampleParams& p) {
  return min(static_cast<uint32_t>(p.vocab), first_of(p) + p.slice);
}

// Calls f(first token, four logits divided by the temperature) for every group of this thread; logits past the row are -inf.
template <class C, class F>
__device__ __forceinline__ void each_heated(const SampleParams& p, F f) {
  constexpr int kAhead = 2;
  const Row<C> row(p, row_of(p), nullptr, nullptr);
  const uint32_t end = end_of(p), stop = row.whole(first_of(p), end);
  const bool divides = row.temperature != 1.f;
  const auto give = [&](uint32_t token, Loaded<4>& group) {
    row.adjust(token, group);
    if (divides) {
#pragma unroll
      for (int j = 0; j < 4; ++j) group.a[j] = row.heated(group.a[j]);
    }
    f(token, group.a);
  };
#pragma unroll 1
  for (uint32_t base = first_of(p); base < end;) {
    const uint32_t from = base + 4 * thread();
    Loaded<4> group;
    if (base < stop) {
      Packed<C> ahead[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) ahead[i] = {};
      row.fetch(from, kGroupStep, stop, ahead);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        row.unpack(from + kGroupStep * i, ahead[i], group);
        if (from + kGroupStep * i < stop) give(from + kGroupStep * i, group);
      }
      base = min(stop, base + kAhead * kGroupStep);
    } else {
      if (from < end) row.load(from, group), give(from, group);
      base += kGroupStep;
    }
  }
}

// Exact masses of this thread's tokens: all, and those before `place`. These functions are not inlined, since few rows need
// them and registers are scarce: values that live across a call are in shared memory.
struct ExactMasses {
  uint64_t before, all;
};
template <class C>
__device__ __noinline__ ExactMasses exact_masses(const SampleParams& p) {
  const Likelihood<C> likelihood{kept_shared().limits.top};
  const uint64_t place = kept_shared().limits.place;
  ExactMasses found{0, 0};
  each_heated<C>(p, [&](uint32_t token, const float (&a)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!is_candidate(a[j])) continue;
      const uint64_t mass = likelihood.mass(a[j]);
      found.all += mass;
      if (ranked(a[j], token + j) > place) found.before += mass;
    }
  });
  return found;
}
// The first token of the order.
template <class C>
__device__ __noinline__ uint64_t exact_first(const SampleParams& p) {
  const Row<C> row(p, row_of(p), nullptr, nullptr);
  uint64_t first = 0;
  row.each_group(first_of(p), end_of(p), [&](uint32_t token, const float (&a)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (is_candidate(a[j])) first = Larger()(first, ranked(row.heated(a[j]), token + j));
  });
  return first;
}
// The winner of the race among the tokens before `place`.
template <class C>
__device__ __noinline__ uint64_t exact_winner(const SampleParams& p) {
  const Row<C> row(p, row_of(p), nullptr, nullptr);
  const uint64_t place = kept_shared().limits.place;
  const Philox philox(p.seed[row.row], p.offset[row.row], p.stream);
  uint64_t winner = 0;
  row.each_group(first_of(p), end_of(p), [&](uint32_t token, const float (&a)[4]) {
    uint32_t words[4];
    philox.sparing().words(token / 4, words);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!is_candidate(a[j])) continue;
      const float own = row.heated(a[j]);
      if (ranked(own, token + j) <= place) continue;
      winner = Larger()(winner, ranked(fmaf(own, kLog2E, minus_log2_exponential(words[j])), token + j));
    }
  });
  return winner;
}

template <class Op>
__device__ __forceinline__ uint64_t reduced(const SampleParams& p, uint64_t value, Op op) {
  ClusterRow cluster(kept_shared().reduce, p.ctas);
  value = cluster.reduce(value, op);
  cluster.sync();  // the next reduction uses a new object
  return value;
}
// Called by all threads; ends with a barrier.
__device__ __forceinline__ void note_place(uint64_t place) {
  if (threadIdx.x == 0) kept_shared().limits.place = place;
  __syncthreads();
}
template <class C>
__device__ __forceinline__ void note_top(uint64_t first) {
  if (threadIdx.x == 0) kept_shared().limits.top = Likelihood<C>::of(key_of(first)).top;
  __syncthreads();
}
template <class C>
__device__ __forceinline__ bool has_share() {
  return C::kTopP && kept_shared().limits.share < 1.f;
}
template <class C>
__device__ __forceinline__ bool reaches(float a) {
  return Likelihood<C>{kept_shared().limits.top}.distance(a) <= kept_shared().limits.most;
}

// Whether p keeps the token at `place`, from exact masses of all tokens.
template <class C>
__device__ __forceinline__ bool is_kept_exactly(const SampleParams& p) {
  const ExactMasses own = exact_masses<C>(p);
  const uint64_t before = reduced(p, own.before, Sum()), all = reduced(p, own.all, Sum());
  return before < need_of(kept_shared().limits.share, all);
}

// The drawn token if there is no front: repeatedly the winner among the tokens that precede the last winner, until one is kept.
template <class C>
__device__ __forceinline__ uint64_t drawn_exactly(const SampleParams& p) {
  const uint64_t first = reduced(p, exact_first<C>(p), Larger());
  if (first == 0 || !(Row<C>(p, row_of(p), nullptr, nullptr).temperature > 0.f)) return first;
  note_top<C>(first);
  note_place(0);
#pragma unroll 1
  for (;;) {
    const uint64_t winner = reduced(p, exact_winner<C>(p), Larger());
    const Row<C> row(p, row_of(p), nullptr, nullptr);
    Loaded<1> one;
    row.load(token_of(winner), one);
    row.adjust(token_of(winner), one);
    const float a = row.heated(one.a[0]);
    note_place(ranked(a, token_of(winner)));
    if (reaches<C>(a) && (!has_share<C>() || is_kept_exactly<C>(p))) return kept_shared().limits.place;
    __syncthreads();
  }
}

template <class C>
class KeptStream {
 public:
  __device__ __forceinline__ KeptStream(const Row<C>& row, KeptShared& shared)
      : row_(row), shared_(shared), front_(shared.front), cluster_(shared.reduce, row.p.ctas), joint_(shared.joint, cluster_) {}

  // The drawn token as a value of `ranked`, after the race; 0: none.
  __device__ __forceinline__ uint64_t drawn() {
    cluster_.wait();  // all CTAs run
    front_.list(cluster_, rank_of(row_.p));
    cluster_.sync();
    if (!front_.is_whole(cluster_)) return drawn_exactly<C>(row_.p);
    if (threadIdx.x < 32) {
      const uint64_t first = front_.find_first(cluster_);
      if (threadIdx.x == 0) shared_.limits.top = Likelihood<C>::of(key_of(first)).top;
      __syncwarp();
      find_places(0);
    }
    __syncthreads();
    const uint64_t first = front_.first();
    if (first == 0 || row_.greedy()) return first;
    const Noted* const places = front_.places();
    if (!has_share<C>()) return places->place;
    uint64_t found;
    while (!is_found(places, found)) {
      __syncthreads();  // all threads have read the places
      if (threadIdx.x < 32) find_places(found);
      __syncthreads();
    }
    return found;
  }

 private:
  __device__ __forceinline__ void find_places(uint64_t before) const {
    front_.find_places(cluster_, before, [](uint64_t place) { return !C::kMinP || reaches<C>(key_of(place)); });
  }
  // Tests the next kPlaces entries of the front, last of the order first. Returns true if one is kept, and sets `found` to it.
  // The first token of the order is always kept.
  __device__ __forceinline__ bool is_found(const Noted* places, uint64_t& found) {
    const RoughPass<C> pass(row_, places, shared_.limits.top);
    Masses own;
    pass.run(first_of(row_.p), end_of(row_.p), own);
    Joint::Sums sums = {own.before[0], own.before[1], own.before[2], own.all};
    joint_.add(sums, rank_of(row_.p));
#pragma unroll 1
    for (int i = 0; i < kPlaces; ++i) {
      found = places[i].place;
      if (found == 0) return true;
      const Verdict verdict = pass.verdict(i, joint_.sum(i), joint_.sum(kPlaces), shared_.limits.share);
      if (verdict == Verdict::kKept) return true;
      if (verdict == Verdict::kLost) continue;
      note_place(found);
      if (is_kept_exactly<C>(row_.p)) return true;
    }
    return false;
  }

  const Row<C>& row_;
  KeptShared& shared_;
  Front front_;
  ClusterRow cluster_;
  Joint joint_;
};

template <class C>
__device__ __forceinline__ void sample_kept(const SampleParams& p) {
  KeptShared& shared = kept_shared();
  const int64_t at = row_of(p);
  const uint32_t first = first_of(p), end = end_of(p);
  if (!is_valid_row(p, at)) return;
  ClusterRow(shared.reduce, p.ctas).arrive();
  if (C::kTopP && threadIdx.x == 0) prefetch_l2(p.top_p + at);
  if (C::kMinP && threadIdx.x == 0) prefetch_l2(p.min_p + at);
  Row<C> row(p, at, nullptr, nullptr);
  FrontRace<C> race(row, shared.front, first, end);
  row.ask(first, min(end, first + FrontRace<C>::kAsked));  // after the first loads, which would wait behind it
  Front(shared.front).clear();
  if (threadIdx.x == 0) {
    shared.limits.share = C::kTopP ? p.top_p[at] : 1.f;
    const float least = C::kMinP ? p.min_p[at] : 0.f;
    shared.limits.most = least > 0.f ? -log2f(fminf(least, 1.f)) : -minus_infinity();
  }
  __syncthreads();
  race.run();
  const uint64_t drawn = KeptStream<C>(row, shared).drawn();
  if (rank_of(p) == 0 && threadIdx.x == 0) write_token(p, at, drawn);
}

}  // namespace opfacade
