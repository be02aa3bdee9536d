// A row of logits as the kernels use it: groups of adjusted logits, and upper bounds that cost less than the adjustment.
#pragma once
#include "kernels/sampling/row_adjust.cuh"

namespace opfacade {

template <class C>
struct Row : AdjustedRow<C> {
  using Base = AdjustedRow<C>;
  using Base::adjust, Base::load, Base::p;
  float shrink;  // factor that replaces a division by the repetition penalty
  bool lowers;   // no penalty raises a logit, so the unpenalised logit is an upper bound

  __device__ __forceinline__ Row(
      const SampleParams& p, uint32_t row, const uint8_t* flags, const BiasIndex* index, const Biased* copied = nullptr)
      : Base(p, row, flags, index, copied) {
    if constexpr (C::kPenalties) {
      shrink = fmaxf(__fdiv_rn(1.f, repetition), 0x1p-126f);  // prevents infinity, so that a product stays a number
      lowers = repetition >= 1.f && frequency >= 0.f && presence >= 0.f;
    }
  }

  // Calls f(first token, four adjusted logits) for the groups of this thread from `first` to `end`; the next group is loaded
  // before f is called.
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

  // An upper bound of the four adjusted logits, up to a relative error of 2^-21; -inf or NaN only if there is no candidate.
  // Biases from a list are ignored.
  __device__ __forceinline__ float bound_of(Loaded<4>& of) const {
    constexpr bool kMaskLast = C::kBitmask && !C::kPenalties;  // a penalty may turn -inf into a number
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

  // Conditional maxima take fewer instructions than replacing masked numbers.
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

  // Multiplications replace divisions; their rounding error is added.
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
