// One row of logits, adjusted by f32 operations that are rounded once each: bitmask, biases, penalties, soft cap, temperature.
#pragma once
#include "kernels/sampling/bias_list.cuh"
#include "kernels/sampling/row_operands.cuh"

namespace opfacade {

template <class C>
struct AdjustedRow : RowOperands<C> {
  using Operands = RowOperands<C>;
  using Operands::p;
  using Operands::row;
  using Operands::window_first;
  const uint8_t* flags;    // flags of the biases
  const BiasIndex* index;  // null: all entries are read
  const Biased* copied;    // the first entries of the list, or null
  float inverse_cap;  // factor that replaces a division by the cap
  float temperature;
  float repetition, frequency, presence;

  __device__ __forceinline__ AdjustedRow(
      const SampleParams& p, uint32_t row, const uint8_t* flags, const BiasIndex* index, const Biased* copied)
      : Operands(p, row), flags(C::kBiasList ? flags : nullptr),
        index(!C::kBiasList || p.adjust.num_biases > BiasIndex::kMost ? nullptr : index), copied(C::kBiasList ? copied : nullptr) {
    if constexpr (C::kSoftCap) inverse_cap = fminf(__fdiv_rn(1.f, p.adjust.soft_cap), kLargest);
    read_temperature(row);
    if constexpr (C::kPenalties)
      repetition = p.adjust.repetition[row], frequency = p.adjust.frequency[row], presence = p.adjust.presence[row];
  }

  // The constructor calls it too; if a kernel calls it again, the compiler drops the first load.
  __device__ __forceinline__ void read_temperature(uint32_t row) {
    temperature = 1.f;
    if constexpr (C::kTemperature) temperature = p.temperature[row];
  }
  __device__ __forceinline__ bool greedy() const { return !(temperature > 0.f); }

  // Adjusts logits before the temperature; -inf if not a candidate.
  template <int kCount>
  __device__ __forceinline__ void adjust(uint32_t token, Loaded<kCount>& of) const {
    float(&a)[kCount] = of.a;
    if constexpr (C::kRaw) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if constexpr (C::kShares) a[j] = a[j] > 0.f ? fminf(a[j], 0x1.fffffep127f) : minus_infinity();
        else a[j] = a[j] > minus_infinity() ? __fadd_rn(a[j], 0.f) : minus_infinity();
        if constexpr (kIsWindowed<C>) a[j] = token + j < window_first ? minus_infinity() : a[j];
      }
      return;
    }
    add(token, of);
    if constexpr (C::kPenalties) penalize(of);
#pragma unroll
    for (int j = 0; j < kCount; ++j) a[j] = a[j] > minus_infinity() ? capped(a[j]) : minus_infinity();
  }

  // Like `adjust`, except for the steps that `settled` repeats.
  template <int kCount>
  __device__ __forceinline__ void change(uint32_t token, Loaded<kCount>& of) const {
    if constexpr (C::kPenalties || C::kSoftCap) adjust(token, of);
    else add(token, of);
  }

  // Clamps to numbers whose products with log2(e) are finite.
  __device__ __forceinline__ static float finite(float a) { return C::kRaw ? fminf(fmaxf(a, -kLargest), kLargest) : a; }

  // Clamps an adjusted candidate and divides it by its temperature.
  __device__ __forceinline__ float settled(float x) const { return heated(within(x)); }

  __device__ __forceinline__ float heated(float a) const {
    if (!C::kTemperature || greedy() || !is_candidate(a)) return a;
    return within(__fdiv_rn(a, temperature));
  }

 protected:
  // Applies the mask and all biases.
  template <int kCount>
  __device__ __forceinline__ void add(uint32_t token, Loaded<kCount>& of) const {
    mask(of);
    if constexpr (C::kBiasList) add_list(token, of.a);
  }
  // Applies the mask and dense biases.
  template <int kCount>
  __device__ __forceinline__ void mask(Loaded<kCount>& of) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if constexpr (C::kBitmask) of.a[j] = of.allowed >> j & 1 ? of.a[j] : minus_infinity();
    if constexpr (C::kBias) bias(of);
  }
  template <int kCount>
  __device__ __forceinline__ void bias(Loaded<kCount>& of) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) of.a[j] = __fadd_rn(of.a[j], of.bias[j]);
  }
  // -0 becomes 0, so that equal numbers have equal bits.
  __device__ __forceinline__ static float within(float a) { return __fadd_rn(fminf(fmaxf(a, -kLargest), kLargest), 0.f); }

  __device__ __forceinline__ float capped(float a) const {
    if constexpr (!C::kSoftCap) return within(a);
    return within(__fmul_rn(tanhf(__fdiv_rn(fminf(fmaxf(a, -kLargest), kLargest), p.adjust.soft_cap)), p.adjust.soft_cap));
  }

  __device__ __forceinline__ bool is_flagged(uint32_t token) const {
    return flags[token / 32 % kBiasFlags] >> token / 4 % 8 & 1;
  }

  // Adds entries one after another, because a token may occur twice. Few groups have an entry.
  template <int kCount>
  __device__ __forceinline__ void add_list(uint32_t token, float (&a)[kCount]) const {
    if (!is_flagged(token)) return;
    const AdjustParams& by = p.adjust;
    const bool chained = index != nullptr;
    const int end = chained ? BiasIndex::kEnd : by.num_biases;
    const uint32_t chain = BiasIndex::chain(token);
#pragma unroll 1
    for (int i = chained ? index->after(-1, chain) : 0; i < end; i = chained ? index->after(i, chain) : i + 1) {
      const Biased entry = copied != nullptr && i < kBiasedCopied ? copied[i] : biased<C>(p, row, i);
      const uint32_t at = entry.token - token;
      if (at >= kCount) continue;
#pragma unroll
      for (int j = 0; j < kCount; ++j) a[j] = at == j ? __fadd_rn(a[j], entry.value) : a[j];
    }
  }

  template <int kCount>
  __device__ __forceinline__ void penalize(Loaded<kCount>& of) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      float& a = of.a[j];
      if (of.count[j] > 0 || of.prompt[j]) a = a > 0.f ? __fdiv_rn(a, repetition) : __fmul_rn(a, repetition);
      if (of.count[j] > 0) a = __fsub_rn(__fsub_rn(a, __fmul_rn(frequency, static_cast<float>(of.count[j]))), presence);
    }
  }
};

}  // namespace opfacade
