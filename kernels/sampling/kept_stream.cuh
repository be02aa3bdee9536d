// Sampling where p, min_p or both filter alone: a row is streamed, not held. Kept tokens precede all others in the order, so the
// winner of a race of all is the token if it is kept. A second pass says so by sums in f32, and races the tokens that precede the
// winner on a ladder of octaves, which mostly says what is drawn if the winner is not kept. If it does not, a third pass judges the
// next winner. Where sums in f32 cannot tell, masses are added as they are defined.
#pragma once
#include "kernels/sampling/joint.cuh"
#include "kernels/sampling/kept.cuh"
#include "kernels/sampling/rough.cuh"

namespace opfacade {

struct KeptShared {
  StreamShared stream;
  JointShared joint;
  LadderShared ladder;
  Winner winner;
};
static_assert(sizeof(KeptShared) <= kKeptShared, "as the binding launches it");

struct ExactMasses {
  uint64_t before, all;
};

// Masses of the tokens of this thread as they are defined, and of those before a place. A call: few rows need it.
template <class C>
__device__ __noinline__ ExactMasses exact_masses(
    const SampleParams& p, uint32_t at, float top, uint64_t place, uint32_t first, uint32_t end) {
  const Row<C> row(p, at, nullptr, nullptr);
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
  __device__ __forceinline__ KeptStream(const Row<C>& row, KeptShared& shared)
      : row_(row), shared_(shared), joint_(shared.joint, ClusterRow(shared.stream.reduce, row.p.ctas)) {}

  // best: the winner of all tokens of this thread. most: its largest logit before it is brought into its range.
  __device__ __forceinline__ uint64_t drawn(uint64_t best, float most, uint32_t first, uint32_t end) {
    Joint::Values found = {best, is_candidate(most) ? ordered(most) : 0u};
    joint_.reduce(found, Larger());
    if (found[0] == 0 || row_.greedy()) return found[0];
    top_ = Likelihood<C>::of(row_.settled(of_ordered(static_cast<uint32_t>(found[1])))).top;
    if (threadIdx.x == 0) note_row(first, end);
    uint64_t next = found[0];
    while (next != 0 && !is_drawn(next)) continue;
    return next;
  }

 private:
  __device__ __forceinline__ Likelihood<C> likelihood() const { return {top_}; }

  __device__ __forceinline__ void note_row(uint32_t first, uint32_t end) const {
    const SampleParams& p = row_.p;
    const Filters<C> filters(p, row_.row);
    shared_.winner.first = first, shared_.winner.end = end;
    shared_.winner.share = filters.share, shared_.winner.most = filters.most();
    shared_.winner.noise = Philox(p.seed[row_.row], p.offset[row_.row], p.stream);
  }

  // Whether the token of `next` is what is drawn. If it is not kept, `next` becomes the winner of the tokens before it that may be,
  // which is drawn if it is known to be kept.
  __device__ __forceinline__ bool is_drawn(uint64_t& next) {
    Loaded<1> one;
    row_.load(token_of(next), one);
    row_.change(token_of(next), one);
    const float a = row_.settled(one.a[0]);
    __syncthreads();
    const bool reaches = likelihood().distance(a) <= shared_.winner.most;
    if (reaches && !(shared_.winner.share < 1.f)) return true;
    if (threadIdx.x == 0) shared_.winner.place = ranked(a, token_of(next)), shared_.winner.x = one.a[0];
    Ladder::clear(shared_.ladder);
    const RoughPass<C> pass(row_, shared_.winner, shared_.ladder, one.a[0], top_);
    __syncthreads();
    Masses own{0.f, 0.f};
    pass.run(own);
    __syncthreads();
    Joint::Values found = {0, fixed(own.before), fixed(own.all), threadIdx.x == 0 ? shared_.ladder.unsure : 0};
    joint_.reduce(found, Sum());
    const Masses sums{number(found[1]), number(found[2])};
    const Need need = pass.need(sums.all, shared_.winner.share);
    next = shared_.winner.place;
    const Verdict verdict = reaches ? pass.verdict(sums, static_cast<uint32_t>(found[3]), need) : Verdict::kLost;
    if (verdict == Verdict::kKept || (verdict == Verdict::kUnsure && is_kept_exactly(next))) return true;
    bool kept;
    next = pass.ladder().winner(ClusterRow(shared_.stream.reduce, row_.p.ctas), joint_, need.least, need.most, kept);
    return kept;
  }

  // Sums of threads as integers, which have no order.
  static __device__ __forceinline__ uint64_t fixed(float sum) { return static_cast<uint64_t>(sum * 0x1p30f); }
  static __device__ __forceinline__ float number(uint64_t fixed) { return static_cast<float>(fixed) * 0x1p-30f; }

  // By masses of all tokens, as they are defined.
  __device__ __forceinline__ bool is_kept_exactly(uint64_t place) {
    const ExactMasses own = exact_masses<C>(row_.p, row_.row, top_, place, shared_.winner.first, shared_.winner.end);
    Joint::Values found = {0, own.before, own.all};
    joint_.reduce(found, Sum());
    return found[1] < need_of(shared_.winner.share, found[2]);
  }

  const Row<C>& row_;
  KeptShared& shared_;
  Joint joint_;
  float top_ = 0.f;     // octaves of the most likely token
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
  const uint64_t drawn = KeptStream<C>(row, shared).drawn(best, stream.most(), first, end);
  if (rank_of(p) == 0 && threadIdx.x == 0) write_token(p, at, drawn);
  ClusterRow(shared.stream.reduce, p.ctas).sync();  // no CTA exits while others read its shared memory
}

}  // namespace opfacade
