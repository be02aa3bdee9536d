// The bias list of a row: which groups of tokens have entries, and the entries of a group.
#pragma once
#include "kernels/ptx/ptx.cuh"
#include "kernels/sampling/sample_params.h"

namespace opfacade {

constexpr int kBiasFlags = 2048;  // bytes; a bit is set if the list has a token of a group of four, modulo the number of bits

// Entries of a bias list in chains by group, modulo the number of chains: a group reads one chain.
struct BiasIndex {
  static constexpr int kChains = 512, kMost = 2048, kEnd = 0xffff;
  uint32_t first[kChains];
  uint16_t next[kMost];

  static __device__ __forceinline__ uint32_t chain(uint32_t token) { return token / 4 % kChains; }
  // The entry after `last` in a chain. Entries are linked in any order, but biases are added in the order of the list.
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

template <class C>
__device__ __forceinline__ Biased biased(const SampleParams& p, int64_t row, int at) {
  const AdjustParams& by = p.adjust;
  return {static_cast<uint32_t>(by.bias_tokens[row * by.bias_tokens_row + at]), by.bias_values[row * by.bias_values_row + at]};
}

// The entry of this thread, if it has one. The load is issued early, before most others.
template <class C>
__device__ __forceinline__ Biased first_biased(const SampleParams& p, int64_t row) {
  const int at = static_cast<int>(thread());
  return C::kBiasList && at < p.adjust.num_biases ? biased<C>(p, row, at) : Biased{0, 0.f};
}

// Called by all threads; ends with a barrier. own: first_biased of this thread. copied: destination of the first entries, or
// null.
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
