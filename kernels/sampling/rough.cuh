// A pass over a row with respect to its winner: the mass that precedes it, in f32, and the race of the tokens that do. Bounds of
// all errors say whether the sums decide; a token whose logit is near the winner's, but not equal, counts as unsure.
#pragma once
#include "kernels/sampling/held.cuh"
#include "kernels/sampling/ladder.cuh"

namespace opfacade {

// The winner so far: its place in the order, and its logit before it is brought into its range. Beside it the filters and the noise
// of the row. In shared memory, since few tokens need them and registers are short.
struct Winner {
  uint64_t place;
  float x, most, share;
  uint32_t first, end;  // of the part of this CTA
  Philox noise;
};

// Masses, where the most likely token has 1.
struct Masses {
  float before, all;
};

enum class Verdict { kKept, kLost, kUnsure };

// The mass before which tokens are kept, at least and at most.
struct Need {
  float least, most;
};

template <class C>
class RoughPass {
 public:
  // winner: that with the logit x. top: octaves of the most likely token.
  __device__ __forceinline__ RoughPass(const Row<C>& row, const Winner& winner, LadderShared& ladder, float x, float top)
      : row_(row), winner_(winner), ladder_(ladder), top_(top) {
    scale_ = C::kTemperature ? __fdiv_rn(kLog2E, row.temperature) : kLog2E;
    const float near = (fabsf(top) + 256.f) * 0x1p-20f, octaves = fmaf(x, scale_, -top);
    const bool usual = fabsf(top) < 4096.f && scale_ < 0x1p100f && scale_ > 0x1p-100f && octaves > -64.f;
    least_ = usual ? fmaxf(octaves, -winner.most) - near : minus_infinity();
    ahead_ = octaves + near;
    ladder_.span(C::kTopP && usual ? fmaxf(-octaves, 2 * kSteps * near) : 0.f);
  }

  // The part of this thread. The ladder has the tokens before `winner` afterwards.
  __device__ __forceinline__ void run(Masses& sums) const {
    uint32_t base = winner_.first;
    const uint32_t stop = row_.whole(base, winner_.end);
#pragma unroll 1
    while (base < stop || base < winner_.end) {
      const uint32_t from = base + 4 * thread();
      float most[kAhead];
      if (base < stop) take(from, stop, most, sums), base = min(stop, base + kAhead * kGroupStep);
      else take_narrow(from, winner_.end, most, sums), base += kGroupStep;
#pragma unroll 1
      for (uint32_t close = near(most); close != 0; close &= close - 1) {
        const int at = __ffs(static_cast<int>(close)) - 1;
        float bound = most[0];
#pragma unroll
        for (int i = 1; i < kAhead; ++i) bound = at == i ? most[i] : bound;
        race(from + kGroupStep * at, bound);
      }
    }
  }

  // In every thread of the row alike. A thread adds as many numbers as it has tokens of a slice.
  __device__ __forceinline__ Verdict verdict(const Masses& sums, uint32_t unsure, const Need& need) const {
    if (fmaf(static_cast<float>(unsure), exp2_approx(ahead_), sums.before) < need.least) return Verdict::kKept;
    return sums.before > need.most ? Verdict::kLost : Verdict::kUnsure;
  }
  // all: the mass of the row. Without a share all is needed; where sums tell nothing, none is known to be.
  __device__ __forceinline__ Need need(float all, float share) const {
    if (!(share < 1.f)) return {-minus_infinity(), -minus_infinity()};
    if (ladder_.is_one()) return {minus_infinity(), -minus_infinity()};
    const float error = 0x1p-14f + (fabsf(top_) + 64.f) * 0x1p-21f + static_cast<float>(row_.p.slice) * 0x1p-33f;
    const float middle = fmaxf(share, 0.f) * all, margin = 2.f * error * all;
    return {middle - margin, middle + margin};
  }
  __device__ __forceinline__ const Ladder& ladder() const { return ladder_; }

 private:
  static constexpr int kAhead = sizeof(typename Row<C>::Bits) == 2 ? 4 : C::kBitmask ? 1 : 2;  // groups whose loads are in flight together
  static constexpr float kFar = 1024.f;  // octaves, where a mass is 0

  // Groups whose loads are in flight together.
  __device__ __forceinline__ void take(uint32_t from, uint32_t stop, float (&most)[kAhead], Masses& sums) const {
    Packed<C> ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = {};
    row_.fetch(from, kGroupStep, stop, ahead);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t token = from + kGroupStep * i;
      Loaded<4> group;
      row_.unpack(token, ahead[i], group);
      most[i] = token < stop ? add(token, group, sums) : minus_infinity();
    }
  }
  // One group, of any alignment.
  __device__ __forceinline__ void take_narrow(uint32_t token, uint32_t end, float (&most)[kAhead], Masses& sums) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) most[i] = minus_infinity();
    if (token >= end) return;
    Loaded<4> group;
    row_.load(token, group);
    most[0] = add(token, group, sums);
  }

  // Adds the masses of a group. Returns its largest octaves; those of NaN are far.
  __device__ __forceinline__ float add(uint32_t token, Loaded<4>& group, Masses& sums) const {
    row_.change(token, group);
    float most = -kFar;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float octaves = octaves_of(group.a[j]);
      most = fmaxf(most, octaves);
      if constexpr (C::kTopP) add(token + j, group.a[j], octaves, sums);
    }
    return most;
  }
  __device__ __forceinline__ void add(uint32_t token, float x, float octaves, Masses& sums) const {
    const float mass = exp2_approx(octaves);
    sums.all += mass;
    if (octaves < least_) return;
    ladder_.count(octaves);
    if (octaves > ahead_) sums.before += mass;
    else if (x != winner_.x) ladder_.count_unsure();
    else if (token < token_of(winner_.place)) sums.before += mass;
  }

  // A bit for each group that may have a kept token before the winner.
  __device__ __forceinline__ uint32_t near(const float (&most)[kAhead]) const {
    uint32_t close = 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      close |= is_candidate(most[i]) && most[i] >= least_ ? 1u << i : 0;
    }
    return close;
  }

  // Keys as they are defined, of few groups. The others are not read again.
  __device__ __forceinline__ void race(uint32_t token, float most) const {
    const Lead lead(ladder_.best(most), is_candidate(least_) ? most + top_ : -minus_infinity());
    if (lead.is_lost()) return;
    uint32_t words[4];
    winner_.noise.sparing().words(token / 4, words);
    if (lead.is_lost(words)) return;
    Loaded<4> group;
    row_.load(token, group);
    row_.change(token, group);
    const Likelihood<C> likelihood{top_};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!is_candidate(group.a[j])) continue;
      const float a = row_.settled(group.a[j]);
      if (ranked(a, token + j) <= winner_.place || !(likelihood.distance(a) <= winner_.most)) continue;
      ladder_.tell(octaves_of(group.a[j]), ranked(fmaf(a, kLog2E, minus_log2_exponential(words[j])), token + j));
    }
  }
  __device__ __forceinline__ float octaves_of(float x) const { return fmaxf(fmaf(x, scale_, -top_), -kFar); }

  const Row<C>& row_;
  const Winner& winner_;
  Ladder ladder_;
  float top_, scale_;
  float least_;  // octaves of tokens that matter; -inf if octaves tell nothing
  float ahead_;  // octaves of tokens that precede the winner for certain
};

}  // namespace opfacade
