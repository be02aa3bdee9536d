// A row of logits as kernels use it: groups of adjusted logits, and bounds of them that cost less than the adjustment.
#pragma once
#include "kernels/sampling/row_adjust.cuh"

namespace opfacade {

template <class C>
struct Row : AdjustedRow<C> {
  using Base = AdjustedRow<C>;
  using Base::adjust, Base::load, Base::p;
  float shrink;  // a factor in place of a division by the repetition penalty
  bool lowers;   // no penalty raises a logit, so that the logit bounds the penalized one

  __device__ __forceinline__ Row(
      const SampleParams& p, uint32_t row, const uint8_t* flags, const BiasIndex* index, const Biased* copied = nullptr)
      : Base(p, row, flags, index, copied) {
    if constexpr (C::kPenalties) {
      shrink = fmaxf(__fdiv_rn(1.f, repetition), 0x1p-126f);  // a product with infinity stays a number
      lowers = repetition >= 1.f && frequency >= 0.f && presence >= 0.f;
    }
  }

  // f(first token, four adjusted logits) of the groups of this thread from `first` to `end`; the next group is loaded before f
  // has this one.
  template <class F>
  __device__ __forceinline__ void each_group(uint32_t first, uint32_t end, F f) const {
    constexpr uint32_t kStep = 4 * kSampleThreads;
    Loaded<4> here, next;
    bool there = false;
#pragma unroll 1
    for (uint32_t token = first + 4 * thread();; token += kStep) {
      const bool more = token < end;
      if (more) load(token, next);
      if (there) {
        adjust(token - kStep, here);
        f(token - kStep, here.a);
      }
      if (!more) return;
      there = true, here = next;
    }
  }

  // A bound of the largest of four: no smaller than `adjust` makes it, but for 2^-21 of the number; -inf or NaN only if none is a
  // candidate. Biases of a list are left out.
  __device__ __forceinline__ float bound_of(Loaded<4>& of) const {
    constexpr bool kMaskLast = C::kBitmask && !C::kPenalties;  // a penalty may make a number of -inf
    if constexpr (kMaskLast && C::kBias) bias(of);
    if constexpr (!kMaskLast) mask(of);
    if constexpr (C::kPenalties)
      if (!lowers) penalize_roughly(of);
    const float most = kMaskLast ? largest_allowed(of) : fmaxf(fmaxf(of.a[0], of.a[1]), fmaxf(of.a[2], of.a[3]));
    if constexpr (!C::kSoftCap) return most;
    return most > minus_infinity() ? cap_roughly(most) : most;
  }

 private:
  using Base::inverse_cap, Base::repetition, Base::frequency, Base::presence;
  using Base::mask, Base::bias;

  // Maxima under a condition take fewer instructions than numbers that are replaced.
  __device__ __forceinline__ static float largest_allowed(const Loaded<4>& of) {
    float most = minus_infinity();
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (of.allowed >> j & 1) most = fmaxf(most, of.a[j]);
    return most;
  }

  // tanh.approx has an error of 2^-11.
  __device__ __forceinline__ float cap_roughly(float a) const {
    const float cap = p.adjust.soft_cap;
    return fmaf(tanh_approx(fminf(fmaxf(a, -kLargest), kLargest) * inverse_cap), cap, cap * 0x1p-10f);
  }

  // Products for divisions: what they round is added.
  __device__ __forceinline__ void penalize_roughly(Loaded<4>& of) const {
    int any = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) any |= max(of.count[j], 0) | of.prompt[j];
    if (any == 0) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& a = of.a[j];
      if (of.count[j] > 0 || of.prompt[j]) a = a * (a > 0.f ? shrink : repetition);
      const float often = frequency * static_cast<float>(of.count[j]);
      if (of.count[j] > 0) a = fmaf(fabsf(a) + fabsf(often), 0x1p-20f, a) - often - presence;
    }
  }
};

}  // namespace opfacade
