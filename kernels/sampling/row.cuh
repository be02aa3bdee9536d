// One row of logits: four tokens at a time, widened, and adjusted by f32 operations that are rounded once each.
#pragma once
#include "kernels/common/run.cuh"
#include "kernels/sampling/order.cuh"
#include "kernels/sampling/sample_params.h"

namespace opfacade {

constexpr int kBiasFlags = 2048;  // bytes; a bit says whether a group of four tokens, modulo their number, is in the list

template <class C>
struct Row {
  using Bits = typename Element<typename C::T>::Bits;
  const SampleParams& p;
  int64_t row;
  const Bits* logits;
  const uint8_t* flags;  // of the biases
  float temperature;
  bool aligned;  // groups of the row are aligned

  __device__ __forceinline__ Row(const SampleParams& p, int64_t row, const uint8_t* flags) : p(p), row(row), flags(flags) {
    int64_t from = row;
    if constexpr (C::kIndices) {
      from = p.indices[row];
      from = from >= 0 && from < p.num_logits ? from : 0;
    }
    logits = static_cast<const Bits*>(p.logits) + from * p.logits_row;
    aligned = reinterpret_cast<uintptr_t>(logits) % (4 * sizeof(Bits)) == 0;
    temperature = 1.f;
    if constexpr (C::kTemperature) temperature = p.temperature[row];
  }

  __device__ __forceinline__ bool greedy() const { return !(temperature > 0.f); }
  __device__ __forceinline__ uint32_t vocab() const { return static_cast<uint32_t>(p.vocab); }

  // As stored; past the vocabulary -inf. One token, or the four of a group.
  template <int kCount>
  __device__ __forceinline__ void load(uint32_t token, float (&a)[kCount]) const {
    if (kCount == 4 && aligned && token + 4 <= vocab()) {
      const Fetched<typename C::T, 4> four = *reinterpret_cast<const Fetched<typename C::T, 4>*>(logits + token);
#pragma unroll
      for (int j = 0; j < kCount; ++j) a[j] = four.at(j);
      return;
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      a[j] = token + j < vocab() ? Element<typename C::T>::load(logits[token + j]) : minus_infinity();
  }

  // Before the temperature; -inf if no candidate.
  template <int kCount>
  __device__ __forceinline__ void adjust(uint32_t token, float (&a)[kCount]) const {
    const AdjustParams& by = p.adjust;
    if constexpr (C::kRaw) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if constexpr (C::kShares) a[j] = a[j] > 0.f ? fminf(a[j], 0x1.fffffep127f) : minus_infinity();
        else a[j] = a[j] > minus_infinity() ? __fadd_rn(a[j], 0.f) : minus_infinity();
      }
      return;
    }
    if constexpr (C::kBitmask) {
      if (token < vocab()) {
        const uint32_t allowed = static_cast<uint32_t>(by.bitmask[row * by.bitmask_row + token / 32]) >> token % 32;
#pragma unroll
        for (int j = 0; j < kCount; ++j) a[j] = allowed >> j & 1 ? a[j] : minus_infinity();
      }
    }
    if constexpr (C::kBias) {
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        if (token + j < vocab()) a[j] = __fadd_rn(a[j], by.bias[row * by.bias_row + token + j]);
    }
    if constexpr (C::kBiasList) add_list(token, a);
    if constexpr (C::kPenalties) penalize(token, a);
#pragma unroll
    for (int j = 0; j < kCount; ++j) a[j] = a[j] > minus_infinity() ? capped(a[j]) : minus_infinity();
  }

  // Numbers whose products with log2(e) are finite.
  __device__ __forceinline__ static float finite(float a) { return C::kRaw ? fminf(fmaxf(a, -kLargest), kLargest) : a; }

  __device__ __forceinline__ float heated(float a) const {
    if (!C::kTemperature || greedy() || !is_candidate(a)) return a;
    return within(__fdiv_rn(a, temperature));
  }

 private:
  // -0 becomes 0, so that equal numbers have equal bits.
  __device__ __forceinline__ static float within(float a) { return __fadd_rn(fminf(fmaxf(a, -kLargest), kLargest), 0.f); }

  __device__ __forceinline__ float capped(float a) const {
    if constexpr (!C::kSoftCap) return within(a);
    return within(__fmul_rn(tanhf(__fdiv_rn(fminf(fmaxf(a, -kLargest), kLargest), p.adjust.soft_cap)), p.adjust.soft_cap));
  }

  __device__ __forceinline__ bool is_flagged(uint32_t token) const {
    return flags[token / 32 % kBiasFlags] >> token / 4 % 8 & 1;
  }

  // Entry after entry: a token may occur twice. Few groups have one.
  template <int kCount>
  __device__ __forceinline__ void add_list(uint32_t token, float (&a)[kCount]) const {
    if (!is_flagged(token)) return;
    const AdjustParams& by = p.adjust;
#pragma unroll 1
    for (int i = 0; i < by.num_biases; ++i) {
      const uint32_t at = static_cast<uint32_t>(by.bias_tokens[row * by.bias_tokens_row + i]) - token;
      if (at >= kCount) continue;
      const float value = by.bias_values[row * by.bias_values_row + i];
#pragma unroll
      for (int j = 0; j < kCount; ++j) a[j] = at == j ? __fadd_rn(a[j], value) : a[j];
    }
  }

  template <int kCount>
  __device__ __forceinline__ void penalize(uint32_t token, float (&a)[kCount]) const {
    const AdjustParams& by = p.adjust;
    const float repetition = by.repetition[row], frequency = by.frequency[row], presence = by.presence[row];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (token + j >= vocab()) continue;
      const int32_t count = by.output_counts[row * by.output_counts_row + token + j];
      if (count > 0 || by.prompt_mask[row * by.prompt_mask_row + token + j])
        a[j] = a[j] > 0.f ? __fdiv_rn(a[j], repetition) : __fmul_rn(a[j], repetition);
      if (count > 0) a[j] = __fsub_rn(__fsub_rn(a[j], __fmul_rn(frequency, static_cast<float>(count))), presence);
    }
  }
};

// All threads; they wait for each other before the flags are read.
template <class C>
__device__ __forceinline__ void flag_biases(const SampleParams& p, int64_t row, uint8_t* flags) {
  if constexpr (!C::kBiasList) return;
  const AdjustParams& by = p.adjust;
  uint32_t* const words = reinterpret_cast<uint32_t*>(flags);
  for (int i = threadIdx.x; i < kBiasFlags / 4; i += kSampleThreads) words[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < by.num_biases; i += kSampleThreads) {
    const uint32_t group = static_cast<uint32_t>(by.bias_tokens[row * by.bias_tokens_row + i]) / 4;
    atomicOr(&words[group / 32 % (kBiasFlags / 4)], 1u << group % 32);
  }
  __syncthreads();
}

}  // namespace opfacade
