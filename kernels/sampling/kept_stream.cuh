// Sampling where p, min_p or both filter alone: a row is streamed, not held. Kept tokens precede all others in the order, so the
// winner of a race of all is the token if it is kept. A second pass says so by sums in f32, and races the tokens that precede the
// winner, which a third one judges if the first is not kept. Where sums in f32 cannot tell, masses are added as they are defined.
#pragma once
#include "kernels/sampling/joint.cuh"
#include "kernels/sampling/kept.cuh"
#include "kernels/sampling/rough.cuh"

namespace opfacade {

struct KeptShared {
  StreamShared stream;
  JointShared joint;
  Winner winner;
};
static_assert(sizeof(KeptShared) <= kKeptShared, "as the binding launches it");

struct ExactMasses {
  uint64_t before, all;
};

// Masses of the tokens of this thread as they are defined, and of those before a place. A call: few rows need it.
template <class C>
__device__ __noinline__ ExactMasses exact_masses(const SampleParams& p, uint32_t at, float top, uint64_t place) {
  const Row<C> row(p, at, nullptr, nullptr);
  const uint32_t first = rank_of(p) * p.slice, end = min(row.vocab(), first + p.slice);
  ExactMasses found{0, 0};
  row.each_group(first, end, [&](uint32_t token, const float (&a)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!is_candidate(a[j])) continue;
      const float own = row.heated(a[j]);
      const uint64_t mass = Likelihood<C>{top}.mass(own);
      found.all += mass;
      if (ranked(own, token + j) > place) found.before += mass;
    }
  });
  return found;
}

template <class C>
class KeptStream {
 public:
  __device__ __forceinline__ KeptStream(const Row<C>& row, KeptShared& shared, uint32_t first, uint32_t end)
      : row_(row), shared_(shared),
        joint_(shared.joint, ClusterRow(shared.stream.reduce, row.p.ctas)), first_(first), end_(end) {
    const Filters<C> filters(row.p, row.row);
    share_ = filters.share, most_ = filters.most();
  }

  // best: the winner of all tokens of this thread. most: its largest logit before it is brought into its range.
  __device__ __forceinline__ uint64_t drawn(uint64_t best, float most) {
    Joint::Values found = {best, is_candidate(most) ? ordered(most) : 0u};
    joint_.reduce(found, Larger());
    if (found[0] == 0 || row_.greedy()) return found[0];
    top_ = Likelihood<C>::of(row_.settled(of_ordered(static_cast<uint32_t>(found[1])))).top;
    next_ = found[0];
    uint64_t drawn;
    do drawn = next_;
    while (drawn != 0 && !is_kept(token_of(drawn)));
    return drawn;
  }

 private:
  __device__ __forceinline__ Likelihood<C> likelihood() const { return {top_}; }

  // Afterwards `next_` is the winner of the tokens before it that min_p leaves.
  __device__ __forceinline__ bool is_kept(uint32_t token) {
    Loaded<1> one;
    row_.load(token, one);
    row_.change(token, one);
    const float a = row_.settled(one.a[0]);
    const bool reaches = likelihood().distance(a) <= most_;
    if (reaches && !(share_ < 1.f)) return true;
    if (threadIdx.x == 0) shared_.stream.best = 0, shared_.winner = {ranked(a, token), one.a[0]};
    __syncthreads();
    const RoughPass<C> pass(row_, shared_.winner, one.a[0], top_, most_);
    Masses own{0.f, 0.f, 0.f};
    Joint::Values found = {pass.run(first_, end_, &shared_.stream.best, own)};
    found[1] = fixed(own.before), found[2] = fixed(own.unsure), found[3] = fixed(own.all);
    joint_.reduce(found, Sum());
    next_ = found[0];
    if (!reaches) return false;
    const Verdict verdict = pass.verdict({number(found[1]), number(found[2]), number(found[3])}, share_);
    return verdict == Verdict::kUnsure ? is_kept_exactly(ranked(a, token)) : verdict == Verdict::kKept;
  }

  // Sums of threads as integers, which have no order.
  static __device__ __forceinline__ uint64_t fixed(float sum) { return static_cast<uint64_t>(sum * 0x1p30f); }
  static __device__ __forceinline__ float number(uint64_t fixed) { return static_cast<float>(fixed) * 0x1p-30f; }

  // By masses of all tokens, as they are defined.
  __device__ __forceinline__ bool is_kept_exactly(uint64_t place) {
    const ExactMasses own = exact_masses<C>(row_.p, row_.row, top_, place);
    Joint::Values found = {0, own.before, own.all};
    joint_.reduce(found, Sum());
    return found[1] < need_of(share_, found[2]);
  }

  const Row<C>& row_;
  KeptShared& shared_;
  Joint joint_;
  uint32_t first_, end_;
  float share_, most_;  // of p; distance from the most likely token that min_p allows
  float top_ = 0.f;     // octaves of the most likely token
  uint64_t next_ = 0;
};

template <class C>
__device__ __forceinline__ void sample_kept(const SampleParams& p) {
  KeptShared& shared = *reinterpret_cast<KeptShared*>(dynamic_shared());
  const int64_t at = blockIdx.x / p.ctas;
  const uint32_t first = rank_of(p) * p.slice, end = min(static_cast<uint32_t>(p.vocab), first + p.slice);
  if (!is_valid_row(p, at)) return;
  const Row<C> row(p, at, nullptr, nullptr);
  if (Stream<C>::kSpans) row.ask(first, min(end, first + Stream<C>::kAsked));
  Stream<C> stream(row, shared.stream, first, end);
  if (threadIdx.x == 0) shared.stream.clear();
  __syncthreads();
  const uint64_t best = stream.best();
  const uint64_t drawn = KeptStream<C>(row, shared, first, end).drawn(best, stream.most());
  if (rank_of(p) == 0 && threadIdx.x == 0) write_token(p, at, drawn);
  ClusterRow(shared.stream.reduce, p.ctas).sync();  // no CTA exits while others read its shared memory
}

}  // namespace opfacade
