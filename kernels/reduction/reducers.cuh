// Reducers, as docs/programs.md defines them. A state is the result of reducing some values. Joining states is associative
// except for rounding, so the caller determines the order. kChains: states per lane, which shorten its chain of dependent
// operations; 1: add_all adds a whole vector at once. kSingly: elements of a column are added one by one. kFindsMost: a held
// row may be folded twice, first for its maximum. kCommutes: join(a, b) and join(b, a) have the same bits.
#pragma once
#include "kernels/common/operations.cuh"

namespace opfacade {

#define OPF_STEP static __device__ __forceinline__

template <class T>
struct Ends {  // the identities of maximum and minimum
  static constexpr int kBits = 8 * sizeof(T) - ops::kSigned<T>;
  OPF_STEP T most() { return static_cast<T>(~uint64_t{0} >> (64 - kBits)); }
  OPF_STEP T least() { return ops::kSigned<T> ? static_cast<T>(-most() - 1) : T(0); }
};
template <>
struct Ends<float> {
  OPF_STEP float most() { return __uint_as_float(0x7f800000u); }
  OPF_STEP float least() { return __uint_as_float(0xff800000u); }
};
template <>
struct Ends<double> {
  OPF_STEP double most() { return double_of_bits(0x7ff0000000000000ull); }
  OPF_STEP double least() { return double_of_bits(0xfff0000000000000ull); }
};

template <class T>
struct alignas(4) OneValue {
  T value;
};

// A reducer whose state is one value. F::of joins two values.
template <class T, class F>
struct Joined {
  using Value = T;
  using State = OneValue<T>;
  static constexpr int kChains = 4;
  static constexpr bool kCommutes = true, kSingly = true, kFindsMost = false;
  OPF_STEP State none() { return {F::none()}; }
  OPF_STEP void add(State& s, T x, int) { s.value = F::of(s.value, x); }
  OPF_STEP State join(State a, State b) { return {F::of(a.value, b.value)}; }
  OPF_STEP T part_value(State s) { return s.value; }
};

template <class T>
struct SumOf {
  OPF_STEP T none() { return T(0); }
  OPF_STEP T of(T a, T b) { return ops::add_(a, b); }
};
template <class T>
struct ProductOf {
  OPF_STEP T none() { return T(1); }
  OPF_STEP T of(T a, T b) { return ops::mul_(a, b); }
};
template <class T, bool kMost>
struct ExtremeOf {
  OPF_STEP T none() { return kMost ? Ends<T>::least() : Ends<T>::most(); }
  OPF_STEP T of(T a, T b) { return kMost ? ops::maximum_(a, b) : ops::minimum_(a, b); }
};
template <bool kAny>
struct TruthOf {
  OPF_STEP bool none() { return !kAny; }
  OPF_STEP bool of(bool a, bool b) { return kAny ? a || b : a && b; }
};
template <class T> using Sum = Joined<T, SumOf<T>>;
template <class T> using Product = Joined<T, ProductOf<T>>;
template <class T, bool kMost> using Extreme = Joined<T, ExtremeOf<T, kMost>>;
template <bool kAny> using Truth = Joined<bool, TruthOf<kAny>>;

// Index of the first largest or smallest value, or of the first NaN.
template <class T, bool kMost>
struct PlaceOf {
  using Value = T;
  struct alignas(4) State {
    T value;
    int32_t index;
  };
  static constexpr int kChains = 4;
  static constexpr bool kCommutes = true, kSingly = true, kFindsMost = false;
  static constexpr int32_t kNone = INT32_MAX;
  OPF_STEP State none() { return {T(0), kNone}; }
  // A lane adds values in ascending order of their indices, so the first of equal values stays.
  OPF_STEP void add(State& s, T x, int index) {
    const bool later = (s.value == s.value) & ((x != x) | before(s.value, x));  // without a branch
    if ((s.index == kNone) | later) s = {x, index};
  }
  OPF_STEP State join(State a, State b) { return second(a, b) ? b : a; }
  OPF_STEP T part_value(State s) { return s.value; }
  OPF_STEP int64_t part_index(State s) { return s.index; }

 private:
  OPF_STEP bool second(State a, State b) {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool first = (a_nan | (a.value == b.value)) ? b.index < a.index : before(a.value, b.value);
    const bool numbers = a_nan != b_nan ? b_nan : first;
    return (a.index == kNone) | ((b.index != kNone) & numbers);
  }
  OPF_STEP bool before(T a, T b) { return kMost ? a < b : b < a; }
};

// The sum of kCount values as a tree, in place: the chain of dependent additions is short.
template <class T, int kCount>
OPF_STEP T sum_of(T (&x)[kCount]) {
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
    for (int i = 0; i + step < kCount; i += 2 * step) x[i] = ops::add_(x[i], x[i + step]);
  }
  return x[0];
}

// Count, mean and sum of squared deviations, joined by Chan's formula. A vector is added as a whole: its mean relative to its
// first element, then its deviations from the mean, then one join. So it costs one division instead of one per element.
template <class T>
struct Welford {
  using Value = T;
  struct State {
    T count, mean, m2;
  };
  static constexpr int kChains = 1;
  static constexpr bool kCommutes = false, kSingly = true, kFindsMost = false;
  OPF_STEP State none() { return {T(0), T(0), T(0)}; }
  OPF_STEP void add(State& s, T x, int) {
    s.count = ops::add_(s.count, T(1));
    const T from = ops::sub_(x, s.mean);
    s.mean = ops::add_(s.mean, ops::div_(from, s.count));
    s.m2 = ops::add_(s.m2, ops::mul_(from, ops::sub_(x, s.mean)));
  }
  template <int kCount>
  OPF_STEP void add_all(State& s, const T (&x)[kCount], int count) {
    if (count <= 0) return;
    T from[kCount], sums[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = from[i] = i < count ? ops::sub_(x[i], x[0]) : T(0);
    const T many = static_cast<T>(count < kCount ? count : kCount);
    const T sum = sum_of(sums), mean = count < kCount ? ops::div_(sum, many) : ops::mul_(sum, T(1) / T(kCount));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const T deviation = ops::sub_(from[i], mean);
      sums[i] = i < count ? ops::mul_(deviation, deviation) : T(0);
    }
    s = join(s, {many, ops::add_(x[0], mean), sum_of(sums)});
  }
  OPF_STEP State join(State a, State b) {
    if (b.count == T(0)) return a;
    if (a.count == T(0)) return b;
    const T count = ops::add_(a.count, b.count), from = ops::sub_(b.mean, a.mean);
    // Most states that are joined have equal counts; then nothing is divided.
    const T share = a.count == b.count ? T(0.5) : ops::div_(b.count, count);
    const T between = ops::mul_(ops::mul_(from, from), ops::mul_(a.count, share));
    return {count, ops::add_(a.mean, ops::mul_(from, share)), ops::add_(ops::add_(a.m2, b.m2), between)};
  }
  OPF_STEP T part_mean(State s) { return s.count == T(0) ? ops::sub_(Ends<T>::most(), Ends<T>::most()) : s.mean; }
  OPF_STEP T part_m2(State s) { return s.m2; }
};

// The maximum, and the sum of exp(x - maximum), in which an x equal to the maximum counts 1. The sum is rescaled once per
// vector. If exponentials are slow, a row in registers is folded by `Most` and then by `Total`, without rescaling.
template <class T, bool kApproximate>
struct ExpSum {
  using Value = T;
  struct State {
    T most, sum;
  };
  static constexpr int kChains = 1;
  static constexpr bool kCommutes = true, kSingly = false, kFindsMost = !kApproximate;
  OPF_STEP State none() { return {Ends<T>::least(), T(0)}; }
  template <int kCount>
  OPF_STEP void add_all(State& s, const T (&x)[kCount], int count) {
    T most = s.most;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < count) most = ops::maximum_(most, x[i]);
    // Without a branch per element: the exponentials would wait for each other.
    T sum = ops::mul_(s.sum, weight(s.most, most));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const T more = ops::add_(sum, weight(x[i], most));
      sum = i < count ? more : sum;
    }
    s.most = most, s.sum = sum;
  }
  OPF_STEP State join(State a, State b) {
    // The larger maximum has weight 1. If a maximum is NaN, the sum becomes NaN.
    const T most = ops::maximum_(a.most, b.most);
    const bool first = a.most == most;
    const T less = weight(first ? b.most : a.most, most);
    return {most, ops::add_(first ? a.sum : ops::mul_(a.sum, less), first ? ops::mul_(b.sum, less) : b.sum)};
  }
  OPF_STEP T part_max(State s) { return s.most; }
  OPF_STEP T part_sum(State s) { return s.sum; }

  using Most = Extreme<T, true>;
  using Total = Sum<T>;
  // The weight exp(x - most) of x, which is not larger than `most`.
  OPF_STEP T weight(T x, T most) {
    const T power = ops::sub_(x, most);
    T found;
    if constexpr (kApproximate) found = ops::exp_approx_(power);
    else found = ops::exp_(power);
    return x == most ? T(1) : found;  // without a branch
  }
};

// Adds the first `count` elements of a vector to the states of a lane. first: index of the first element; kStep: step from one
// index to the next.
template <class R, int kCount, int kStep = 1>
OPF_STEP void accumulate(typename R::State (&states)[R::kChains], const typename R::Value (&x)[kCount], int count, int first) {
  if constexpr (R::kChains == 1) {
    R::add_all(states[0], x, count);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < count) R::add(states[i % R::kChains], x[i], first + i * kStep);
  }
}

// Adds the first `count` values of a column to its state. first: index of the first value; step: step from one index to the
// next.
template <class R, int kCount>
OPF_STEP void accumulate_rows(typename R::State& state, const typename R::Value (&x)[kCount], int count, int first, int step) {
  if constexpr (!R::kSingly) {
    R::add_all(state, x, count);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < count) R::add(state, x[i], first + i * step);
  }
}

template <class R>
OPF_STEP typename R::State joined(typename R::State (&states)[R::kChains]) {
  if constexpr (R::kChains == 1) return states[0];
  else return R::join(R::join(states[0], states[1]), R::join(states[2], states[3]));
}

#undef OPF_STEP

}  // namespace opfacade
