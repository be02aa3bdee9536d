// Cuts an order after k candidates, or where their mass reaches a share: passes over the candidates of a source narrow the
// range of values that contains the crossing, until it is one value. Ties are cut by id in the same way.
#pragma once
#include "kernels/sampling/select.cuh"

namespace opfacade {

// The last kept candidate: its value, and the last kept id among equal values. Value 0: all candidates are kept.
struct Cut {
  uint32_t value, token;
  __device__ __forceinline__ bool keeps(uint32_t value_, uint32_t token_) const {
    return value_ > value || (value_ == value && token_ <= token);
  }
  __device__ __forceinline__ Cut earlier(const Cut& other) const {
    return value > other.value || (value == other.value && token < other.token) ? *this : other;
  }
};

// A range of integers that contains the crossing; each pass divides it by 256. The largest integer comes first.
struct Range {
  uint32_t low, high;
  __device__ __forceinline__ int shift() const {
    const int bits = 32 - __clz(static_cast<int>(high - low));
    return bits > 8 ? bits - 8 : 0;
  }
  __device__ __forceinline__ bool has(uint32_t value) const { return value >= low && value <= high; }
  __device__ __forceinline__ int bucket(uint32_t value) const { return static_cast<int>((high - value) >> shift()); }
  __device__ __forceinline__ Range inside(int bucket) const {
    const uint32_t top = high - (static_cast<uint32_t>(bucket) << shift()), width = (1u << shift()) - 1;
    return {top - low > width ? top - width : low, top};
  }
};

// A pass searches among values, or among the complements of the ids of tokens with one value, so that the lowest id is the
// largest.
struct Sought {
  bool ids;
  uint32_t value;
  __device__ __forceinline__ uint32_t of(uint32_t token, float a) const {
    return !ids ? ordered(a) : ordered(a) == value ? ~token : 0u;
  }
};

// Source: each(f) calls f(token, adjusted logit) for the candidates of a thread, and mass(a) is the mass of one; the cluster
// shares the source.
template <class Source>
class Narrowing {
 public:
  __device__ __forceinline__ Narrowing(const Source& source, ClusterRow& cluster, BucketPass& pass, SelectShared& shared)
      : source_(source), cluster_(cluster), pass_(pass), shared_(shared) {}

  // Cuts among the candidates with has(a), which contain the crossing; `before` is the amount that precedes them. kept: amount
  // up to the cut.
  template <class F>
  __device__ __forceinline__ Cut cut(F has, uint32_t vocab, const Target& target, Amount before, Amount& kept) {
    Range range = ends(has);
    Target need = target;
    Sought sought{false, 0};
#pragma unroll 1
    for (;;) {
      const Crossing found = narrow(range, need, before, sought);
      if (sought.ids) return {sought.value, ~range.low};
      const uint64_t mass = found.here.mass / max(found.here.count, 1u), lack = target.need - target.of(found.before);
      const uint64_t ties = target.by_mass ? (lack + mass - 1) / max(mass, uint64_t{1}) : lack;
      kept = found.before + Amount{static_cast<uint32_t>(ties), ties * mass};
      sought = {true, range.low};
      if (ties == found.here.count) return {sought.value, ~0u};
      range = {~(vocab - 1), ~0u}, need = {false, ties}, before = {0, 0};
    }
  }

 private:
  // The smallest and the largest value.
  template <class F>
  __device__ __forceinline__ Range ends(F has) {
    uint64_t found = 0;  // the largest value, and the complement of the smallest
    source_.each([&](uint32_t, float a) {
      if (has(a)) found = LargerHalves()(found, uint64_t{ordered(a)} << 32 | ~ordered(a));
    });
    found = cluster_.reduce(found, LargerHalves());
    return {~static_cast<uint32_t>(found), static_cast<uint32_t>(found >> 32)};
  }

  // Narrows `range` to the single value at which the target is crossed, and returns the crossing.
  __device__ __forceinline__ Crossing narrow(Range& range, const Target& target, const Amount& before, const Sought& sought) {
    Crossing at{0, before, before};
    int passes = 1 + (range.shift() + 7) / 8;
#pragma unroll 1
    do {
      pass_.begin();
      source_.each([&](uint32_t token, float a) {
        const uint32_t own = sought.of(token, a);
        if (range.has(own)) pass_.add(range.bucket(own), source_.mass(a));
      });
      pass_.end(cluster_, shared_.sums);
      at = pass_.crossing(shared_.sums, target, at.before);
      range = range.inside(at.bucket);
    } while (--passes > 0);
    return at;
  }

  const Source& source_;
  ClusterRow& cluster_;
  BucketPass& pass_;
  SelectShared& shared_;
};

}  // namespace opfacade
