// One row of logits: four tokens at a time, widened, and adjusted by f32 operations that are rounded once each.
#pragma once
#include "kernels/common/run.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/sampling/order.cuh"
#include "kernels/sampling/sample_params.h"

namespace opfacade {

constexpr int kBiasFlags = 2048;  // bytes; a bit says whether a group of four tokens, modulo their number, is in the list

// Entries of a bias list by their group, modulo the number of chains: a group reads those of one chain.
struct BiasIndex {
  static constexpr int kChains = 512, kMost = 2048, kEnd = 0xffff;
  uint32_t first[kChains];
  uint16_t next[kMost];

  static __device__ __forceinline__ uint32_t chain(uint32_t token) { return token / 4 % kChains; }
  // The entry after `last` in a chain: they are linked in any order, and biases are added in that of the list.
  __device__ __forceinline__ int after(int last, uint32_t chain) const {
    int found = kEnd;
    for (uint32_t i = first[chain]; i != kEnd; i = next[i])
      if (static_cast<int>(i) > last) found = min(found, static_cast<int>(i));
    return found;
  }
};

// An entry of a list of biases.
struct Biased {
  uint32_t token;
  float value;
};
constexpr int kBiasedCopied = kSampleThreads;  // the first entries of a list, in shared memory

// Tokens as they are loaded, with what adjusts each.
template <int kCount>
struct Loaded {
  float a[kCount], bias[kCount];
  int32_t count[kCount];
  uint8_t prompt[kCount];
  uint32_t allowed;
};

// Four tokens as they are loaded from aligned operands, each as whole words until it is used: unpacking would wait for the load
// and delay the next one.
template <class C>
struct Packed {
  Fetched<typename C::T, 4> x;
  uint32_t allowed, prompt;
  Run<float, 4> bias;
  Run<int32_t, 4> count;
};

template <class C>
constexpr int kAddedBytes = 4 * sizeof(typename Element<typename C::T>::Bits) + (C::kBitmask ? 4 : 0) + (C::kBias ? 16 : 0);

template <class C>
__device__ __forceinline__ Biased biased(const SampleParams& p, int64_t row, int at) {
  const AdjustParams& by = p.adjust;
  return {static_cast<uint32_t>(by.bias_tokens[row * by.bias_tokens_row + at]), by.bias_values[row * by.bias_values_row + at]};
}

template <class C>
struct Row {
  using Bits = typename Element<typename C::T>::Bits;
  const SampleParams& p;
  uint32_t row;  // a grid has fewer than 2^31
  const Bits* logits;
  const uint8_t* flags;    // of the biases
  const BiasIndex* index;  // null: all entries are read
  const Biased* copied;    // the first entries, or null
  float temperature;
  float repetition, frequency, presence, shrink, inverse_cap;  // a factor in place of a division by the cap
  bool aligned;  // groups of the row are aligned
  bool lowers;   // no penalty raises a logit, so that the logit bounds the penalized one

  __device__ __forceinline__ Row(
      const SampleParams& p, uint32_t row, const uint8_t* flags, const BiasIndex* index, const Biased* copied = nullptr)
      : p(p), row(row), flags(C::kBiasList ? flags : nullptr),
        index(!C::kBiasList || p.adjust.num_biases > BiasIndex::kMost ? nullptr : index), copied(C::kBiasList ? copied : nullptr) {
    int64_t from = row;
    if constexpr (C::kIndices) {
      from = p.indices[row];
      from = from >= 0 && from < p.num_logits ? from : 0;
    }
    logits = static_cast<const Bits*>(p.logits) + from * p.logits_row;
    aligned = reinterpret_cast<uintptr_t>(logits) % (4 * sizeof(Bits)) == 0;
    if constexpr (C::kSoftCap) inverse_cap = fminf(__fdiv_rn(1.f, p.adjust.soft_cap), kLargest);
    temperature = 1.f;
    if constexpr (C::kTemperature) temperature = p.temperature[row];
    if constexpr (C::kPenalties) {
      repetition = p.adjust.repetition[row], frequency = p.adjust.frequency[row], presence = p.adjust.presence[row];
      shrink = fmaxf(__fdiv_rn(1.f, repetition), 0x1p-126f);  // a product with infinity stays a number
      lowers = repetition >= 1.f && frequency >= 0.f && presence >= 0.f;
    }
  }

  __device__ __forceinline__ bool greedy() const { return !(temperature > 0.f); }
  __device__ __forceinline__ uint32_t vocab() const { return static_cast<uint32_t>(p.vocab); }

  // One token, or the four of a group; past the vocabulary -inf.
  template <int kCount>
  __device__ __forceinline__ void load(uint32_t token, Loaded<kCount>& to) const {
    const AdjustParams& by = p.adjust;
    if (kCount == 4 && aligned && token + 4 <= vocab()) {
      const Fetched<typename C::T, 4> four = *reinterpret_cast<const Fetched<typename C::T, 4>*>(logits + token);
#pragma unroll
      for (int j = 0; j < kCount; ++j) to.a[j] = four.at(j);
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        to.a[j] = token + j < vocab() ? Element<typename C::T>::load(logits[token + j]) : minus_infinity();
    }
    if constexpr (C::kBitmask)
      to.allowed = token < vocab() ? static_cast<uint32_t>(by.bitmask[row * by.bitmask_row + token / 32]) >> token % 32 : 0;
    if constexpr (C::kBias) few(by.bias + row * by.bias_row, token, to.bias);
    if constexpr (C::kPenalties) {
      few(by.prompt_mask + row * by.prompt_mask_row, token, to.prompt);
      few(by.output_counts + row * by.output_counts_row, token, to.count);
    }
  }

  // Where groups end that are loaded as whole words; `first` if operands are not aligned.
  __device__ __forceinline__ uint32_t whole(uint32_t first, uint32_t end) const {
    const AdjustParams& by = p.adjust;
    bool is = aligned;
    if constexpr (C::kBias) is = is && reinterpret_cast<uintptr_t>(by.bias + row * by.bias_row) % 16 == 0;
    if constexpr (C::kPenalties) {
      is = is && reinterpret_cast<uintptr_t>(by.prompt_mask + row * by.prompt_mask_row) % 4 == 0;
      is = is && reinterpret_cast<uintptr_t>(by.output_counts + row * by.output_counts_row) % 16 == 0;
    }
    return is ? max(first, min(end, vocab() / 4 * 4)) : first;
  }

  // The group `further` tokens after `from`, before `whole`. The sum of both is taken of pointers: one register has many groups.
  __device__ __forceinline__ void fetch(uint32_t from, uint32_t further, Packed<C>& to) const {
    fetch_added(from, further, to);
    fetch_counts(from, further, to);
  }
  // The same without what penalties read.
  __device__ __forceinline__ void fetch_added(uint32_t from, uint32_t further, Packed<C>& to) const {
    const AdjustParams& by = p.adjust;
    to.x = *reinterpret_cast<const Fetched<typename C::T, 4>*>(logits + from + further);
    if constexpr (C::kBitmask) to.allowed = static_cast<uint32_t>((by.bitmask + row * by.bitmask_row + from / 32)[further / 32]);
    if constexpr (C::kBias) to.bias = *reinterpret_cast<const Run<float, 4>*>(by.bias + row * by.bias_row + from + further);
  }
  __device__ __forceinline__ void fetch_counts(uint32_t from, uint32_t further, Packed<C>& to) const {
    const AdjustParams& by = p.adjust;
    if constexpr (C::kPenalties) {
      to.prompt = *reinterpret_cast<const uint32_t*>(by.prompt_mask + row * by.prompt_mask_row + from + further);
      to.count = *reinterpret_cast<const Run<int32_t, 4>*>(by.output_counts + row * by.output_counts_row + from + further);
    }
  }
  // Brings into the cache the lines that `fetch_added` reads.
  __device__ __forceinline__ void ask_added(uint32_t from, uint32_t further) const {
    const AdjustParams& by = p.adjust;
    prefetch_l2(logits + from + further);
    if constexpr (C::kBitmask) prefetch_l2(by.bitmask + row * by.bitmask_row + from / 32 + further / 32);
    if constexpr (C::kBias) prefetch_l2(by.bias + row * by.bias_row + from + further);
  }
  // Tokens from `from` to `to` of the logits and the mask, into the cache: each operand by a warp.
  __device__ __forceinline__ void ask(uint32_t from, uint32_t to) const {
    const int32_t* const mask = p.adjust.bitmask + row * p.adjust.bitmask_row;
    if (thread() / 32 == 0) ask_of(logits + from, logits + to);
    if (C::kBitmask && thread() / 32 == 1) ask_of(mask + from / 32, mask + to / 32);
  }
  // The same of what penalties read.
  __device__ __forceinline__ void ask_counts(uint32_t from, uint32_t to) const {
    if constexpr (!C::kPenalties) return;
    const AdjustParams& by = p.adjust;
    const uint32_t warp = thread() / 32;
    if (warp == 2) ask_of(by.prompt_mask + row * by.prompt_mask_row + from, by.prompt_mask + row * by.prompt_mask_row + to);
    if (warp == 3) ask_of(by.output_counts + row * by.output_counts_row + from, by.output_counts + row * by.output_counts_row + to);
  }
  // Brings into the cache the counts of one token.
  __device__ __forceinline__ void ask_counts(uint32_t token) const {
    if constexpr (!C::kPenalties) return;
    const AdjustParams& by = p.adjust;
    prefetch_l2(by.prompt_mask + row * by.prompt_mask_row + token);
    prefetch_l2(by.output_counts + row * by.output_counts_row + token);
  }
  __device__ __forceinline__ void unpack(uint32_t token, const Packed<C>& from, Loaded<4>& to) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to.a[j] = from.x.at(j);
      if constexpr (C::kBias) to.bias[j] = from.bias.e[j];
      if constexpr (C::kPenalties) to.count[j] = from.count.e[j], to.prompt[j] = static_cast<uint8_t>(from.prompt >> 8 * j);
    }
    if constexpr (C::kBitmask) to.allowed = from.allowed >> token % 32;
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

  // Before the temperature; -inf if no candidate.
  template <int kCount>
  __device__ __forceinline__ void adjust(uint32_t token, Loaded<kCount>& of) const {
    float(&a)[kCount] = of.a;
    if constexpr (C::kRaw) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if constexpr (C::kShares) a[j] = a[j] > 0.f ? fminf(a[j], 0x1.fffffep127f) : minus_infinity();
        else a[j] = a[j] > minus_infinity() ? __fadd_rn(a[j], 0.f) : minus_infinity();
      }
      return;
    }
    add(token, of);
    if constexpr (C::kPenalties) penalize(of);
#pragma unroll
    for (int j = 0; j < kCount; ++j) a[j] = a[j] > minus_infinity() ? capped(a[j]) : minus_infinity();
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
  // As `adjust` does, but for what `settled` does.
  template <int kCount>
  __device__ __forceinline__ void change(uint32_t token, Loaded<kCount>& of) const {
    if constexpr (C::kPenalties || C::kSoftCap) adjust(token, of);
    else add(token, of);
  }

  // Numbers whose products with log2(e) are finite.
  __device__ __forceinline__ static float finite(float a) { return C::kRaw ? fminf(fmaxf(a, -kLargest), kLargest) : a; }

  // Brings an adjusted candidate into its range and divides it by its temperature.
  __device__ __forceinline__ float settled(float x) const { return heated(within(x)); }

  __device__ __forceinline__ float heated(float a) const {
    if (!C::kTemperature || greedy() || !is_candidate(a)) return a;
    return within(__fdiv_rn(a, temperature));
  }

 private:
  // The mask and all biases.
  template <int kCount>
  __device__ __forceinline__ void add(uint32_t token, Loaded<kCount>& of) const {
    mask(of);
    if constexpr (C::kBiasList) add_list(token, of.a);
  }
  // The mask and dense biases.
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
  // Maxima under a condition take fewer instructions than numbers that are replaced.
  __device__ __forceinline__ static float largest_allowed(const Loaded<4>& of) {
    float most = minus_infinity();
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (of.allowed >> j & 1) most = fmaxf(most, of.a[j]);
    return most;
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

  // Entry after entry: a token may occur twice. Few groups have one.
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

  // Whole units of 16 bytes that lie between both.
  __device__ __forceinline__ static void ask_of(const void* from, const void* to) {
    const uintptr_t first = (reinterpret_cast<uintptr_t>(from) + 15) & ~uintptr_t{15}, end = reinterpret_cast<uintptr_t>(to) & ~uintptr_t{15};
    if (first < end) prefetch_l2_span(reinterpret_cast<const void*>(first), static_cast<uint32_t>(end - first), thread() % 32);
  }

  // Reads the values of one token or of a group, at once where a row of them is aligned; 0 past the vocabulary.
  template <class T, int kCount>
  __device__ __forceinline__ void few(const T* from, uint32_t token, T (&to)[kCount]) const {
    if (kCount == 4 && reinterpret_cast<uintptr_t>(from) % (4 * sizeof(T)) == 0 && token + 4 <= vocab()) {
      const Run<T, 4> four = *reinterpret_cast<const Run<T, 4>*>(from + token);
#pragma unroll
      for (int j = 0; j < kCount; ++j) to[j] = four.e[j];
      return;
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) to[j] = token + j < vocab() ? from[token + j] : T(0);
  }
};

// The entry of this thread, if it has one: loaded before much else is under way.
template <class C>
__device__ __forceinline__ Biased first_biased(const SampleParams& p, int64_t row) {
  const int at = static_cast<int>(thread());
  return C::kBiasList && at < p.adjust.num_biases ? biased<C>(p, row, at) : Biased{0, 0.f};
}

// All threads; they wait for each other before the flags are read. own: first_biased of this thread. copied: where the first
// entries are copied to, or null.
template <class C>
__device__ __forceinline__ void flag_biases(
    const SampleParams& p, int64_t row, uint8_t* flags, BiasIndex& index, Biased own, Biased* copied = nullptr) {
  if constexpr (!C::kBiasList) return;
  const AdjustParams& by = p.adjust;
  uint32_t* const words = reinterpret_cast<uint32_t*>(flags);
  for (int i = thread(); i < kBiasFlags / 4; i += kSampleThreads) words[i] = 0;
  for (int i = thread(); i < BiasIndex::kChains; i += kSampleThreads) index.first[i] = BiasIndex::kEnd;
  if (copied != nullptr) copied[thread()] = own;
  __syncthreads();
  for (int i = thread(); i < by.num_biases; i += kSampleThreads) {
    if (i >= kSampleThreads) own.token = static_cast<uint32_t>(by.bias_tokens[row * by.bias_tokens_row + i]);
    if (own.token >= static_cast<uint32_t>(p.vocab)) continue;  // padding
    const uint32_t group = own.token / 4;
    atomicOr(&words[group / 32 % (kBiasFlags / 4)], 1u << group % 32);
    if (i < BiasIndex::kMost)
      index.next[i] = static_cast<uint16_t>(atomicExch(&index.first[BiasIndex::chain(own.token)], static_cast<uint32_t>(i)));
  }
  __syncthreads();
}

}  // namespace opfacade
