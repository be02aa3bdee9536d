// A pass over a row with respect to its winner: the mass that precedes it, in f32, and the race of the tokens that do. Bounds of
// all errors say whether the sums decide; a token whose logit is near the winner's, but not equal, counts as unsure.
#pragma once
#include "kernels/sampling/held.cuh"

namespace opfacade {

// The winner so far, in shared memory, since few tokens need it and registers are short: its place in the order, and its logit
// before it is brought into its range.
struct Winner {
  uint64_t place;
  float x;
};

// Masses, where the most likely token has 1.
struct Masses {
  float before, unsure, all;
};

enum class Verdict { kKept, kLost, kUnsure };

template <class C>
class RoughPass {
 public:
  // winner: that with the logit x. top: octaves of the most likely token. most: distance from it that min_p allows.
  __device__ __forceinline__ RoughPass(const Row<C>& row, const volatile Winner& winner, float x, float top, float most)
      : row_(row), winner_(winner), top_(top), most_(most) {
    scale_ = C::kTemperature ? __fdiv_rn(kLog2E, row.temperature) : kLog2E;
    near_ = (fabsf(top) + 256.f) * 0x1p-20f;
    octaves_ = fmaf(x, scale_, -top);
    usual_ = fabsf(top) < 4096.f && scale_ < 0x1p100f && scale_ > 0x1p-100f && octaves_ > -64.f;
  }

  // The part of this thread. best: the largest key of the CTA so far, 0 at first. Returns the winner of the tokens before `winner`.
  __device__ __forceinline__ uint64_t run(uint32_t first, uint32_t end, uint32_t* best, Masses& sums) const {
    const Philox philox = Philox(row_.p.seed[row_.row], row_.p.offset[row_.row], row_.p.stream).sparing();
    const uint32_t stop = row_.whole(first, end);
    uint64_t found = 0;
#pragma unroll 1
    for (uint32_t base = first; base < end;) {
      const uint32_t from = base + 4 * thread();
      float most[kAhead];
      if (base < stop) take(from, stop, most, sums), base = min(stop, base + kAhead * kGroupStep);
      else take_narrow(from, end, most, sums), base += kGroupStep;
#pragma unroll 1
      for (uint32_t close = near(most); close != 0; close &= close - 1) {
        const int at = __ffs(static_cast<int>(close)) - 1;
        float bound = most[0];
#pragma unroll
        for (int i = 1; i < kAhead; ++i) bound = at == i ? most[i] : bound;
        race(from + kGroupStep * at, bound, philox, best, found);
      }
    }
    return found;
  }

  // In every thread of the row alike. A thread adds as many numbers as it has tokens of a slice.
  __device__ __forceinline__ Verdict verdict(const Masses& sums, float share) const {
    const float error = 0x1p-14f + (fabsf(top_) + 64.f) * 0x1p-21f + static_cast<float>(row_.p.slice) * 0x1p-33f;
    const float need = fmaxf(share, 0.f) * sums.all, margin = 2.f * error * sums.all;
    if (usual_ && sums.before + sums.unsure + margin < need) return Verdict::kKept;
    return usual_ && sums.before - margin > need ? Verdict::kLost : Verdict::kUnsure;
  }

 private:
  static constexpr int kAhead = sizeof(typename Row<C>::Bits) == 2 ? 4 : C::kBitmask ? 1 : 2;  // groups whose loads are in flight together
  static constexpr float kFar = 1024.f;  // octaves, where a mass is 0

  // Groups that are loaded as whole words.
  __device__ __forceinline__ void take(uint32_t from, uint32_t stop, float (&most)[kAhead], Masses& sums) const {
    Packed<C> ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      ahead[i] = {};
      if (from + kGroupStep * i < stop) row_.fetch(from, kGroupStep * i, ahead[i]);
    }
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
      const float octaves = fmaxf(fmaf(group.a[j], scale_, -top_), -kFar);
      most = fmaxf(most, octaves);
      if constexpr (C::kTopP) add(token + j, group.a[j], octaves, sums);
    }
    return usual_ ? most : -minus_infinity();  // each group is looked at
  }
  __device__ __forceinline__ void add(uint32_t token, float x, float octaves, Masses& sums) const {
    const float mass = exp2_approx(octaves), ahead = octaves - octaves_;
    sums.all += mass;
    if (ahead > near_) sums.before += mass;
    else if (ahead < -near_) return;
    else if (x != winner_.x) sums.unsure += mass;
    else if (token < token_of(winner_.place)) sums.before += mass;
  }

  // A bit for each group that may have a kept token before the winner.
  __device__ __forceinline__ uint32_t near(const float (&most)[kAhead]) const {
    uint32_t close = 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const bool is = is_candidate(most[i]) && !(most[i] < octaves_ - near_) && !(most[i] < -most_ - near_);
      close |= is ? 1u << i : 0;
    }
    return close;
  }

  // Keys as they are defined, of few groups. The others are not read again.
  __device__ __forceinline__ void race(uint32_t token, float most, const Philox& philox, uint32_t* best, uint64_t& found) const {
    const Lead lead(best_key(best), most + top_);
    if (lead.is_lost()) return;
    uint32_t words[4];
    philox.words(token / 4, words);
    if (lead.is_lost(words)) return;
    Loaded<4> group;
    row_.load(token, group);
    row_.change(token, group);
    const uint64_t known = found;
    const Likelihood<C> likelihood{top_};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!is_candidate(group.a[j])) continue;
      const float a = row_.settled(group.a[j]);
      if (ranked(a, token + j) <= winner_.place || !(likelihood.distance(a) <= most_)) continue;
      found = Larger()(found, ranked(fmaf(a, kLog2E, minus_log2_exponential(words[j])), token + j));
    }
    if (found != known) atomicMax(best, static_cast<uint32_t>(found >> 32));
  }

  const Row<C>& row_;
  const volatile Winner& winner_;
  float top_, most_, scale_, near_, octaves_;
  bool usual_;
};

}  // namespace opfacade
