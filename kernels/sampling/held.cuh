// Sampling with filters or a report: a cluster holds a row in shared memory, so that the row is read once from HBM; tokens past
// what is held are read again, through L2. The kept set is a prefix of the order, so each filter is a cut and the earliest holds.
#pragma once
#include "kernels/sampling/noise.cuh"
#include "kernels/sampling/row.cuh"
#include "kernels/sampling/select.cuh"
#include "kernels/sampling/stream.cuh"

namespace opfacade {

struct alignas(16) HeldShared {
  ReduceShared reduce;
  SelectShared select;
  uint8_t flags[kBiasFlags];
};

static_assert(sizeof(HeldShared) <= kHeldShared, "held logits follow");

constexpr float kOctaves = 41.f;  // below the most likely token, where masses end

// `narrow` looks for values, or the ids of tokens with one value in reverse, so that the lowest is the largest.
struct Sought {
  bool ids;
  uint32_t value;
  __device__ __forceinline__ uint32_t of(uint32_t token, float a) const {
    return !ids ? ordered(a) : ordered(a) == value ? ~token : 0u;
  }
};

// The adjusted logit of any token, read from the row. A call: many loops have it, and few rows need it.
template <class C>
__device__ __noinline__ float read_again(const SampleParams& p, int64_t row, const uint8_t* flags, uint32_t token) {
  const Row<C> logits(p, row, flags);
  float a[1];
  logits.load(token, a);
  logits.adjust(token, a);
  return logits.heated(a[0]);
}

template <class C>
class HeldRow {
 public:
  __device__ __forceinline__ HeldRow(const Row<C>& row, HeldShared& shared, float* held)
      : row_(row), held_(held), cluster_(shared.reduce, row.p.ctas), select_(shared.select), shared_(shared.select) {
    first_ = blockIdx.x % row.p.ctas * row.p.slice;
    end_ = min(row.vocab(), first_ + row.p.slice);
    past_ = min(end_, first_ + row.p.held);
  }

  // Reads the row; the first of its order, in every thread.
  __device__ __forceinline__ uint64_t hold() {
    uint64_t first = 0;
#pragma unroll 2
    for (uint32_t token = first_ + 4 * threadIdx.x; token < end_; token += 4 * kSampleThreads) {
      float a[4];
      row_.load(token, a);
      row_.adjust(token, a);
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j] = row_.heated(a[j]);
      if (token < past_) *reinterpret_cast<Run<float, 4>*>(held_ + (token - first_)) = {a[0], a[1], a[2], a[3]};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (is_candidate(a[j])) first = Larger()(first, ranked(a[j], token + j));
    }
    own_ = first;
    first = cluster_.reduce(first, Larger());
    top_ = C::kShares ? key_of(first) : __fmul_rn(Row<C>::finite(key_of(first)), kLog2E);
    return first;
  }

  // Octaves of probability below the most likely token; not negative.
  __device__ __forceinline__ float below(float a) const { return __fsub_rn(top_, __fmul_rn(Row<C>::finite(a), kLog2E)); }

  // The weight of a candidate, where the most likely one has 1.
  __device__ __forceinline__ float weight(float a) const {
    return C::kShares ? __fdiv_rn(a, top_) : exp2_approx(-below(a));
  }
  // In units of 2^-40: an integer, so that sums have no order.
  __device__ __forceinline__ uint64_t mass(float a) const { return static_cast<uint64_t>(fmaf(weight(a), kMassUnit, 0.5f)); }
  // Grows as a candidate gets less likely: min_p bounds it.
  __device__ __forceinline__ float distance(float a) const { return C::kShares ? -weight(a) : below(a); }
  static __device__ __forceinline__ float distance_of(float share) { return C::kShares ? -share : -log2f(share); }

  // f(token, adjusted logit) of every candidate of this thread.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
    for (uint32_t token = first_ + threadIdx.x; token < end_; token += kSampleThreads) {
      const float a = logit(token);
      if (is_candidate(a)) f(token, a);
    }
  }
  // f(first token, four adjusted logits) of every group of this thread.
  template <class F>
  __device__ __forceinline__ void each_group(F f) const {
#pragma unroll 1
    for (uint32_t token = first_ + 4 * threadIdx.x; token < end_; token += 4 * kSampleThreads) {
      float a[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j] = token + j < end_ ? logit(token + j) : minus_infinity();
      f(token, a);
    }
  }

  // A bucket of `survey`; falling in a. Shares have 32 buckets an octave.
  __device__ __forceinline__ int coarse(float a) const {
    if constexpr (C::kShares) return static_cast<int>(min((ordered(top_) - ordered(a)) >> 18, kBuckets - 1u));
    return static_cast<int>(fminf(below(a) * ((kBuckets - 1) / kOctaves), kBuckets - 1.f));
  }
  __device__ __forceinline__ uint64_t total_mass() {
    uint64_t sum = 0;
    each([&](uint32_t, float a) { sum += mass(a); });
    return cluster_.reduce(sum, Sum());
  }

  // Counts and masses by distance from the most likely token, as far as the target needs them. Atomics are what takes time, so
  // the first of each thread is counted before: if these reach the target, no candidate behind the bucket where they do counts.
  __device__ __forceinline__ void survey(const Target& target) {
    select_.begin();
    if (own_ != 0) select_.add(coarse(key_of(own_)), mass(key_of(own_)));
    select_.end(cluster_, shared_.coarse);
    const int bound = select_.crossing(shared_.coarse, target, {0, 0}).bucket, last = bound < 0 ? kBuckets : bound;
    select_.begin();
    each([&](uint32_t, float a) {
      const int bucket = coarse(a);
      if (bucket <= last) select_.add(bucket, mass(a));
    });
    select_.end(cluster_, shared_.coarse);
  }

  // The cut of a target, and what is kept by it if the row reaches the target. `survey` came before, for this target or for a
  // later one.
  __device__ __forceinline__ Cut cut(const Target& target, Amount& kept) {
    const Crossing rough = select_.crossing(shared_.coarse, target, {0, 0});
    if (rough.bucket < 0) return {0, ~0u};
    uint64_t ends = 0;  // the largest value of the bucket, and the complement of the smallest
    each([&](uint32_t, float a) {
      if (coarse(a) == rough.bucket) ends = LargerHalves()(ends, uint64_t{ordered(a)} << 32 | ~ordered(a));
    });
    ends = cluster_.reduce(ends, LargerHalves());
    Range range{~static_cast<uint32_t>(ends), static_cast<uint32_t>(ends >> 32)};
    Target need = target;
    Amount before = rough.before;
    Sought sought{false, 0};
#pragma unroll 1
    for (;;) {
      const Crossing found = narrow(range, need, before, sought);
      if (sought.ids) return {sought.value, ~range.low};
      const uint64_t mass = found.here.mass / max(found.here.count, uint64_t{1}), lack = target.need - target.of(found.before);
      const uint64_t ties = target.by_mass ? (lack + mass - 1) / max(mass, uint64_t{1}) : lack;
      kept = found.before + Amount{ties, ties * mass};
      sought = {true, range.low};
      if (ties == found.here.count) return {sought.value, ~0u};
      range = {~(row_.vocab() - 1), ~0u}, need = {false, ties}, before = {0, 0};
    }
  }

  // The adjusted logit of a token of this CTA.
  __device__ __forceinline__ float logit(uint32_t token) const {
    return token < past_ ? held_[token - first_] : again(token);
  }
  __device__ __forceinline__ float again(uint32_t token) const { return read_again<C>(row_.p, row_.row, row_.flags, token); }

  __device__ __forceinline__ ClusterRow& cluster() { return cluster_; }

 private:
  // Afterwards `range` is the value at which the target is crossed.
  __device__ __forceinline__ Crossing narrow(Range& range, const Target& target, const Amount& before, const Sought& sought) {
    Crossing at{0, before, before};
    int passes = 1 + (range.shift() + 7) / 8;
#pragma unroll 1
    do {
      select_.begin();
      each([&](uint32_t token, float a) {
        const uint32_t own = sought.of(token, a);
        if (range.has(own)) select_.add(range.bucket(own), mass(a));
      });
      select_.end(cluster_, shared_.sums);
      at = select_.crossing(shared_.sums, target, at.before);
      range = range.inside(at.bucket);
    } while (--passes > 0);
    return at;
  }

  const Row<C>& row_;
  float* held_;
  ClusterRow cluster_;
  BucketPass select_;
  SelectShared& shared_;
  uint32_t first_, end_, past_;
  uint64_t own_ = 0;  // the first of this thread
  float top_ = 0.f;
};

}  // namespace opfacade
