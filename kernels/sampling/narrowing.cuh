// The cut of an order after k candidates, or where their mass reaches a share: passes over the candidates of a source, until the
// range of values in which the target is crossed is one value. Equal values are cut by id in the same way.
#pragma once
#include "kernels/sampling/select.cuh"

namespace opfacade {

// The last candidate that is kept, as a value and the last id that is kept of those with it; 0 and any id: all are kept.
struct Cut {
  uint32_t value, token;
  __device__ __forceinline__ bool keeps(uint32_t value_, uint32_t token_) const {
    return value_ > value || (value_ == value && token_ <= token);
  }
  __device__ __forceinline__ Cut earlier(const Cut& other) const {
    return value > other.value || (value == other.value && token < other.token) ? *this : other;
  }
};

// A range of integers that the crossing is in, halved eight times a pass; the largest is first.
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

// Values are looked for, or the ids of tokens with one value in reverse, so that the lowest is the largest.
struct Sought {
  bool ids;
  uint32_t value;
  __device__ __forceinline__ uint32_t of(uint32_t token, float a) const {
    return !ids ? ordered(a) : ordered(a) == value ? ~token : 0u;
  }
};

// Source: each(f) calls f(token, adjusted logit) for the candidates of a thread, mass(a) is that of one; the cluster shares it.
template <class Source>
class Narrowing {
 public:
  __device__ __forceinline__ Narrowing(const Source& source, ClusterRow& cluster, BucketPass& pass, SelectShared& shared)
      : source_(source), cluster_(cluster), pass_(pass), shared_(shared) {}

  // Among the candidates with has(a), which cross the target; `before` of it comes before them. kept: all up to the cut.
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
    uint64_t found = 0;  // the largest, and the complement of the smallest
    source_.each([&](uint32_t, float a) {
      if (has(a)) found = LargerHalves()(found, uint64_t{ordered(a)} << 32 | ~ordered(a));
    });
    found = cluster_.reduce(found, LargerHalves());
    return {~static_cast<uint32_t>(found), static_cast<uint32_t>(found >> 32)};
  }

  // Afterwards `range` is the value at which the target is crossed.
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
