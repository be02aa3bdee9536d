// Sampling with filters or a report: a cluster holds a row in shared memory, so that HBM is read once; tokens that do not fit
// are read again, through L2. The kept set is a prefix of the order: each filter is a cut, and the earliest cut applies.
#pragma once
#include "kernels/sampling/candidate_list.cuh"
#include "kernels/sampling/likelihood.cuh"
#include "kernels/sampling/narrowing.cuh"
#include "kernels/sampling/race.cuh"
#include "kernels/sampling/row.cuh"
#include "kernels/sampling/stream.cuh"

namespace opfacade {

struct alignas(16) HeldShared {
  ReduceShared reduce;
  SelectShared select;
  uint32_t listed;  // candidates that this CTA has listed
  uint32_t best;    // ordered integer of the largest key that a thread of the CTA has found
  uint32_t left;    // CTAs of the cluster whose rows have yet to be held, one bit each
  uint8_t flags[kBiasFlags];
};

static_assert(sizeof(HeldShared) <= kHeldShared, "lists follow");

// The bias index is used while a row is read, before it is cut; `read_again` does not use it.
__device__ __forceinline__ BiasIndex& bias_index(HeldShared& shared) {
  static_assert(sizeof(BiasIndex) <= sizeof(BucketSums) * 2, "in place of the sums");
  return *reinterpret_cast<BiasIndex*>(&shared.select.coarse);
}

constexpr float kOctaves = 41.f;  // octaves below the most likely token at which masses become 0
constexpr int kSample = 8;        // one of this many candidates is sampled to estimate where a target is crossed

// The adjusted logit of any token, read from the row. Not inlined: many loops use it, and few rows need it.
template <class C>
__device__ __noinline__ float read_again(const SampleParams& p, uint32_t row, const uint8_t* flags, uint32_t token) {
  const Row<C> logits(p, row, flags, nullptr);
  Loaded<1> one;
  logits.load(token, one);
  logits.adjust(token, one);
  return logits.heated(one.a[0]);
}

// The same for four tokens, which are loaded together.
template <class C>
__device__ __noinline__ Run<float, 4> read_four_again(const SampleParams& p, uint32_t row, const uint8_t* flags, uint32_t token) {
  const Row<C> logits(p, row, flags, nullptr);
  Loaded<4> four;
  logits.load(token, four);
  logits.adjust(token, four);
  Run<float, 4> found;
#pragma unroll
  for (int j = 0; j < 4; ++j) found.e[j] = logits.heated(four.a[j]);
  return found;
}

// Sums of coarse buckets: buckets first to last are exact, and the bucket before `first` contains the sum of all earlier ones.
struct Surveyed {
  int first = 0, last = -1;
  __device__ __forceinline__ bool exact(const Crossing& found) const {
    return found.bucket < 0 ? last == kBuckets - 1 : found.bucket >= first;
  }
};

template <class C>
class HeldRow {
 public:
  // held: memory for logits, located after the lists.
  __device__ __forceinline__ HeldRow(const Row<C>& row, HeldShared& shared, CandidateList list, float* held)
      : row_(row), held_(held), cluster_(shared.reduce, row.p.ctas), pass_(shared.select), shared_(shared), list_(list) {
    first_ = blockIdx.x % row.p.ctas * row.p.slice;
    end_ = min(row.vocab(), first_ + row.p.slice);
    if constexpr (kIsWindowed<C>) first_ = max(first_, row.window_first / 4 * 4);
    past_ = min(end_, first_ + row.p.held);
  }

  // Reads the row and returns its most likely candidate, in every thread. also(first token, four adjusted logits) is called for
  // every group.
  template <class F>
  __device__ __forceinline__ uint64_t hold(F also) {
    uint64_t first = 0;
    if (thread() == 0) shared_.best = 0;
    __syncthreads();
    row_.each_group(first_, end_, [&](uint32_t token, float (&a)[4]) {
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j] = row_.heated(a[j]);
      if (token < past_) *reinterpret_cast<Run<float, 4>*>(held_ + (token - first_)) = {a[0], a[1], a[2], a[3]};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (is_candidate(a[j])) first = Larger()(first, ranked(a[j], token + j));
      also(token, a);
    });
    own_ = first;
    first = cluster_.reduce(first, Larger());
    top_ = Likelihood<C>::of(key_of(first)).top;
    return first;
  }

  // The probability of a token relative to the most likely one of the row.
  __device__ __forceinline__ float below(float a) const { return likelihood().below(a); }
  __device__ __forceinline__ float weight(float a) const { return likelihood().weight(a); }
  __device__ __forceinline__ uint64_t mass(float a) const { return likelihood().mass(a); }
  __device__ __forceinline__ float distance(float a) const { return likelihood().distance(a); }
  static __device__ __forceinline__ float distance_of(float share) { return C::kShares ? -share : -log2f(share); }

  // Calls f(first token, four adjusted logits) for every group of this thread; logits past the row are -inf.
  template <class F>
  __device__ __forceinline__ void each_group(F f) const {
#pragma unroll 1
    for (uint32_t token = first_ + 4 * thread(); token < end_; token += 4 * kSampleThreads) {
      Run<float, 4> four;
      if (token < past_) four = *reinterpret_cast<const Run<float, 4>*>(held_ + (token - first_));
      else four = read_four_again<C>(row_.p, row_.row, row_.flags, token);
      f(token, four.e);
    }
  }
  // Calls f(token, adjusted logit) for every candidate of this thread, one at a time: for a long f.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
    for (uint32_t token = first_ + thread(); token < end_; token += kSampleThreads) {
      const float a = token < past_ ? held_[token - first_] : again(token);
      if (is_candidate(a)) f(token, a);
    }
  }
  // The same, four at a time: for a short f.
  template <class F>
  __device__ __forceinline__ void each_of_four(F f) const {
    each_group([&](uint32_t first, const float (&a)[4]) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (is_candidate(a[j])) f(first + j, a[j]);
    });
  }

  // The bucket of a logit by its distance from the most likely token. With probabilities as input there are 32 buckets per
  // octave.
  __device__ __forceinline__ int coarse(float a) const {
    if constexpr (C::kShares) return static_cast<int>(min((ordered(top_) - ordered(a)) >> 18, kBuckets - 1u));
    return static_cast<int>(fminf(below(a) * ((kBuckets - 1) / kOctaves), kBuckets - 1.f));
  }
  __device__ __forceinline__ uint64_t total_mass() {
    uint64_t sum = 0;
    each_of_four([&](uint32_t, float a) { sum += mass(a); });
    return cluster_.reduce(sum, Sum());
  }

  // Lists all candidates up to the bucket in which the first candidates of all threads reach the target: the crossing cannot be
  // after it. Returns their number, or 0 if the first candidates do not reach the target or the list is too small. copies:
  // whether this CTA gets the list.
  __device__ __forceinline__ int list_of(const Target& target, bool copies) {
    pass_.begin();
    if (own_ != 0) pass_.add(coarse(key_of(own_)), mass(key_of(own_)));
    pass_.end(cluster_, shared_.select.sums);
    bound_ = pass_.crossing(shared_.select.sums, target, {0, 0}).bucket;
    if (bound_ < 0) return 0;
    return list([&](uint32_t, float a) { return coarse(a) <= bound_; }, copies);
  }

  // Lists the candidates of all CTAs for which `takes` is true. Returns 0 if there are too many. Between two lists of a row
  // there is a cut, whose barriers separate the lists.
  template <class F>
  __device__ __forceinline__ int list(F takes, bool copies) {
    if (thread() == 0) shared_.listed = 0;
    __syncthreads();
    bool room = true;
    each_of_four([&](uint32_t token, float a) {
      if (!room || !takes(token, a)) return;
      const uint32_t at = atomicAdd(&shared_.listed, 1u);
      room = at < list_.own_room;
      if (room) list_.own[at] = ranked(a, token);
    });
    cluster_.sync();
    return list_.collect(cluster_, &shared_.listed, copies);
  }
  __device__ __forceinline__ const CandidateList& listed() const { return list_; }

  // The cut at a target. kept: amount that the cut keeps, if the row reaches the target.
  __device__ __forceinline__ Cut cut(const Target& target, Amount& kept) {
    const Crossing rough = crossing(target);
    if (rough.bucket < 0) return {0, ~0u};
    Narrowing<HeldRow> narrowing(*this, cluster_, pass_, shared_.select);
    return narrowing.cut([&](float a) { return coarse(a) == rough.bucket; }, row_.vocab(), target, rough.before, kept);
  }

  // The adjusted logit of a token, whichever CTA holds it.
  __device__ __forceinline__ float again(uint32_t token) const { return read_again<C>(row_.p, row_.row, row_.flags, token); }
  __device__ __forceinline__ ClusterRow& cluster() { return cluster_; }
  __device__ __forceinline__ BucketPass& pass() { return pass_; }
  __device__ __forceinline__ HeldShared& shared() { return shared_; }
  __device__ __forceinline__ const Row<C>& row() const { return row_; }

 private:
  __device__ __forceinline__ Likelihood<C> likelihood() const { return {top_}; }

  // The coarse bucket of a crossing. Atomics dominate the time, so a sample predicts the buckets in which the crossing may be,
  // and candidates before these are summed in registers. If the prediction is wrong, all buckets are counted.
  __device__ __forceinline__ Crossing crossing(const Target& target) {
    SelectShared& shared = shared_.select;
    if constexpr (!C::kProbs) {  // wide sets are rare: no registers are spent on the prediction
      survey({0, kBuckets - 1});
      return pass_.crossing(shared.coarse, target, {0, 0});
    }
    Surveyed wanted = surveyed_.last >= 0 ? surveyed_ : bound_ >= 0 ? Surveyed{0, bound_} : likely(target);
    Crossing found;
#pragma unroll 1
    for (;; wanted = {0, kBuckets - 1}) {
      if (wanted.first != surveyed_.first || wanted.last != surveyed_.last) survey(wanted);
      found = pass_.crossing(shared.coarse, target, {0, 0});
      if (surveyed_.exact(found)) return found;
    }
  }

  // Counts and masses by distance from the most likely token.
  __device__ __forceinline__ void survey(const Surveyed& wanted) {
    Amount before{0, 0};
    pass_.begin();
    each([&](uint32_t, float a) {
      const int bucket = coarse(a);
      if (bucket < wanted.first) before = before + Amount{1, mass(a)};
      else if (bucket <= wanted.last) pass_.add(bucket, mass(a));
    });
    if (wanted.first > 0) pass_.add_of_warp(wanted.first - 1, before);
    pass_.end(cluster_, shared_.select.coarse);
    surveyed_ = wanted;
  }

  __device__ __forceinline__ Surveyed likely(const Target& target) {
    pass_.begin();
    for (uint32_t token = first_ + 4 * thread(); token < past_; token += kSample * kSampleThreads) {
      const float a = held_[token - first_];
      if (is_candidate(a)) pass_.add(coarse(a), mass(a));
    }
    pass_.end(cluster_, shared_.select.sums);
    const uint64_t need = target.need / kSample, slack = need / 16 + 1;
    Surveyed found;
#pragma unroll 1
    for (int end = 0; end < 2; ++end) {
      const Target about{target.by_mass, end == 0 ? need - need / 16 : need + slack};
      (end == 0 ? found.first : found.last) = pass_.crossing(shared_.select.sums, about, {0, 0}).bucket;
    }
    return found.first < 0 || found.last < 0 ? Surveyed{max(found.first, 0), kBuckets - 1} : found;
  }

  const Row<C>& row_;
  float* held_;
  ClusterRow cluster_;
  BucketPass pass_;
  HeldShared& shared_;
  CandidateList list_;
  Surveyed surveyed_;
  uint32_t first_, end_, past_;
  int bound_ = -1;    // the crossing of the listed target is not after this bucket
  uint64_t own_ = 0;  // the most likely candidate of this thread
  float top_ = 0.f;
};

}  // namespace opfacade
