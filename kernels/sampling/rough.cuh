// A pass over a row with respect to a few places of its order: the mass of all tokens, and that before each place, in f32. Which
// tokens are before a place is exact, and masses have a bound of their errors, which says whether the sums decide.
#pragma once
#include "kernels/sampling/front.cuh"
#include "kernels/sampling/held.cuh"

namespace opfacade {

// Masses, where the most likely token has 1.
struct Masses {
  float before[kPlaces], all;
};

enum class Verdict { kKept, kLost, kUnsure };

template <class C>
class RoughPass {
 public:
  // top: octaves of the most likely token.
  __device__ __forceinline__ RoughPass(const Row<C>& row, const Placed& placed, float top) : row_(row), placed_(placed), top_(top) {
    scale_ = C::kTemperature ? __fdiv_rn(kLog2E, row.temperature) : kLog2E;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) x_[i] = placed.x[i], below_[i] = below(placed.x[i]), group_[i] = placed.token[i] / 4;
  }

  // The part of this thread.
  __device__ __forceinline__ void run(uint32_t base, uint32_t end, Masses& sums) const {
    const uint32_t stop = row_.whole(base, end);
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) sums.before[i] = 0.f;
    sums.all = 0.f;
#pragma unroll 1
    while (base < end) {
      const uint32_t from = base + 4 * thread();
      if (base < stop) take(from, stop, sums), base = min(stop, base + kAhead * kGroupStep);
      else take_narrow(from, end, sums), base += kGroupStep;
    }
  }

  // In every thread of the row alike. A thread adds as many numbers as it has tokens of a slice.
  __device__ __forceinline__ Verdict verdict(int place, float before, float all, float share) const {
    const float octaves = fmaf(placed_.x[place], scale_, -top_);
    const bool usual = fabsf(top_) < 4096.f && scale_ < 0x1p100f && scale_ > 0x1p-13f && octaves > -64.f;
    if (!usual) return Verdict::kUnsure;
    const float error = 0x1p-14f + (fabsf(top_) + 64.f) * 0x1p-21f + static_cast<float>(row_.p.slice) * 0x1p-33f;
    const float middle = fmaxf(share, 0.f) * all, margin = 2.f * error * all;
    if (before < middle - margin) return Verdict::kKept;
    return before > middle + margin ? Verdict::kLost : Verdict::kUnsure;
  }

 private:
  static constexpr int kAhead = sizeof(typename Row<C>::Bits) == 2 ? 4 : C::kBitmask ? 1 : 2;  // groups whose loads are in flight together
  static constexpr float kFar = 1024.f;  // octaves, where a mass is 0
  // Quotients of different logits may be equal; those of 16 bits are too far apart.
  static constexpr bool kTies = C::kTemperature && sizeof(typename Row<C>::Bits) == 4;

  // Groups whose loads are in flight together.
  __device__ __forceinline__ void take(uint32_t from, uint32_t stop, Masses& sums) const {
    Packed<C> ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = {};
    row_.fetch(from, kGroupStep, stop, ahead);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t token = from + kGroupStep * i;
      Loaded<4> group;
      row_.unpack(token, ahead[i], group);
      if (token < stop) add(token, group, sums);
    }
  }
  // One group, of any alignment.
  __device__ __forceinline__ void take_narrow(uint32_t token, uint32_t end, Masses& sums) const {
    if (token >= end) return;
    Loaded<4> group;
    row_.load(token, group);
    add(token, group, sums);
  }

  // The masses of a group. Equal logits precede a place in groups before that of its token: the next smaller number is the limit.
  __device__ __forceinline__ void add(uint32_t token, Loaded<4>& group, Masses& sums) const {
    row_.change(token, group);
    float limit[kPlaces];
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) limit[i] = token / 4 < group_[i] ? below_[i] : x_[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float x = group.a[j], mass = exp2_approx(fmaxf(fmaf(x, scale_, -top_), -kFar));
      sums.all += mass;
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) {
        if (x > limit[i]) sums.before[i] += mass;
        if constexpr (kTies)
          if (x != x_[i] && fabsf(x - x_[i]) < fmaf(fabsf(x), 0x1p-21f, 0x1p-120f)) sums.before[i] += tied(i, x, token + j) * mass;
      }
    }
#pragma unroll
    for (int i = 0; i < kPlaces; ++i)
      if (token / 4 == group_[i]) sums.before[i] += equal(token, group, placed_.token[i], x_[i]);
  }
  // How often a token near a place has to be added, so that it counts before the place if it is, though the quotients are equal.
  __device__ __forceinline__ float tied(int place, float x, uint32_t token) const {
    if (row_.settled(x) != row_.settled(x_[place])) return 0.f;
    return (token < placed_.token[place] ? 1.f : 0.f) - (x > x_[place] ? 1.f : 0.f);
  }
  // The mass of equal logits before the token of a place, in its group.
  __device__ __forceinline__ float equal(uint32_t token, const Loaded<4>& group, uint32_t placed, float x) const {
    float count = 0.f;
#pragma unroll
    for (int j = 0; j < 3; ++j) count += token + j < placed && group.a[j] == x ? 1.f : 0.f;
    return count * exp2_approx(fmaxf(fmaf(x, scale_, -top_), -kFar));
  }
  // The next smaller number.
  static __device__ __forceinline__ float below(float x) { return x == 0.f ? -0x1p-149f : of_ordered(ordered(x) - 1); }

  const Row<C>& row_;
  const Placed& placed_;
  float top_, scale_, x_[kPlaces], below_[kPlaces];
  uint32_t group_[kPlaces];
};

}  // namespace opfacade
