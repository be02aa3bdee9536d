// Sampling without filters: each logit is read once and nothing is kept. The race is an argmax, so CTAs of a row merge by the
// larger key.
#pragma once
#include "kernels/sampling/chunk.cuh"
#include "kernels/sampling/cluster_row.cuh"
#include "kernels/sampling/race.cuh"

namespace opfacade {

struct StreamShared {
  ReduceShared reduce;
  uint32_t best;  // ordered key that some thread of the CTA has found
  uint8_t flags[kBiasFlags];
  BiasIndex index;
  float raised[BiasIndex::kChains];  // the sum of biases above 0 in a chain
};

static_assert(sizeof(StreamShared) <= kStreamShared, "as the binding launches it");

// Rows that are not valid are neither read nor written; a wrong count leaves none valid.
__device__ __forceinline__ bool is_valid_row(const SampleParams& p, int64_t row) {
  if (p.num_valid == nullptr) return true;
  const int64_t count = *p.num_valid;
  return count <= p.rows && row < count;
}

// The race of a part of a row. Groups are loaded while those before are raced. A group is looked at closely where the noise of a
// word, if E is no more than its uniform, may win: few groups are, and those are read again.
template <class C>
class Stream {
 public:
  __device__ __forceinline__ Stream(const Row<C>& row, StreamShared& shared)
      : row_(row), shared_(shared), philox_(row.p.seed[row.row], row.p.offset[row.row], row.p.stream) {
    scale_ = kLog2E;
    if (C::kTemperature) scale_ = row.greedy() ? 1.f : __fdiv_rn(kLog2E, row.temperature);
  }

  // The largest key of the tokens from `first` to `end` in this thread, and which token has it.
  __device__ __forceinline__ uint64_t best_of(uint32_t first, uint32_t end) {
    const uint32_t stop = row_.whole(first, end);
    uint32_t from = first + 4 * threadIdx.x, base = first, close = from < end;  // a bit for each group to look at
    if (kEarly) fetch(from, stop);
    ask(from + kAhead * kStep, stop);
#pragma unroll 1
    for (;;) {
#pragma unroll 1
      for (; close != 0; close &= close - 1) look(from + kStep * static_cast<uint32_t>(__ffs(static_cast<int>(close)) - 1));
      if (base == first) __syncthreads();  // a first key of each thread bounds what can win
      if (base >= end) return found_;
      from = base + 4 * threadIdx.x;
      float most[kAhead];
      if (base < stop) {
        if (!kEarly) fetch(from, stop);
        take(from, stop, most);
        if (kEarly) fetch(from + kAhead * kStep, stop);
        base = min(stop, base + kAhead * kStep);
      } else {
        take_narrow(from, end, most);
        base += kStep;
      }
      close = near(from, most);
    }
  }

 private:
  static constexpr uint32_t kStep = kGroupStep;
  static constexpr int kAhead = kLoadedBytes<C> <= 20 ? 4 : 2;
  static constexpr bool kEarly = kLoadedBytes<C> <= 52;  // else registers are short

  __device__ __forceinline__ void fetch(uint32_t from, uint32_t stop) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (from + kStep * i < stop) row_.fetch(from, kStep * i, next_[i]);
  }

  // Logits that are fetched next: without their registers, while the first ones come.
  __device__ __forceinline__ void ask(uint32_t from, uint32_t stop) const {
    if constexpr (C::kBias || C::kPenalties) return;  // registers are short
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (from + kStep * i < stop) prefetch_l2(row_.logits + from + kStep * i);
  }

  // Bounds of the groups that are fetched; -inf from `stop` on.
  __device__ __forceinline__ void take(uint32_t from, uint32_t stop, float (&most)[kAhead]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t token = from + kStep * i;
      Loaded<4> group;
      row_.unpack(token, next_[i], group);
      const float bound = row_.bound_of(token, group, shared_.raised);
      most[i] = token < stop ? bound : minus_infinity();
    }
  }
  // The bound of one group, of any alignment.
  __device__ __forceinline__ void take_narrow(uint32_t token, uint32_t end, float (&most)[kAhead]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) most[i] = minus_infinity();
    if (token >= end) return;
    Loaded<4> group;
    row_.load(token, group);
    most[0] = row_.bound_of(token, group, shared_.raised);
  }

  // Two groups at a time: a call of Philox is a chain of products.
  __device__ __forceinline__ uint32_t near(uint32_t from, const float (&most)[kAhead]) const {
    const float noise = row_.greedy() ? 0.f : kMostNoise;
    uint32_t close = 0;
#pragma unroll
    for (int i = 0; i < kAhead; i += 2) {
      const float best = best_key(&shared_.best);
      const Lead lead(best, most[i] * scale_), other(best, most[i + 1] * scale_);
      const bool may = is_candidate(most[i]) && !lead.is_lost(noise);
      const bool other_may = is_candidate(most[i + 1]) && !other.is_lost(noise);
      if (!may && !other_may) continue;
      uint32_t words[4], other_words[4];
      philox_.words((from + kStep * i) / 4, words);
      philox_.words((from + kStep * (i + 1)) / 4, other_words);
      const uint32_t bit = lead.is_lost(words) ? 0 : 1u << i, other_bit = other.is_lost(other_words) ? 0 : 2u << i;
      close |= (may ? bit : 0) | (other_may ? other_bit : 0);
    }
    return close;
  }

  // Keys as they are defined.
  __device__ __forceinline__ void look(uint32_t token) {
    Loaded<4> group;
    row_.load(token, group);
    row_.adjust(token, group);
    uint32_t words[4];
    philox_.words(token / 4, words);
    const uint64_t before = found_;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!is_candidate(group.a[j])) continue;
      const float noisy = fmaf(row_.heated(group.a[j]), kLog2E, minus_log2_exponential(words[j]));
      found_ = Larger()(found_, ranked(row_.greedy() ? group.a[j] : noisy, token + j));
    }
    if (found_ != before) atomicMax(&shared_.best, static_cast<uint32_t>(found_ >> 32));
  }

  const Row<C>& row_;
  StreamShared& shared_;
  Philox philox_;
  Packed<C> next_[kAhead];
  float scale_;  // a product instead of the division
  uint64_t found_ = 0;
};

// Chains of biases that are indexed.
template <class C>
__device__ __forceinline__ void raise_chains(const SampleParams& p, int64_t row, float (&raised)[BiasIndex::kChains]) {
  if constexpr (!C::kBiasList) return;
  const AdjustParams& by = p.adjust;
  for (int i = threadIdx.x; i < BiasIndex::kChains; i += kSampleThreads) raised[i] = 0.f;
  __syncthreads();
  for (int i = threadIdx.x; i < by.num_biases; i += kSampleThreads) {
    const uint32_t token = static_cast<uint32_t>(by.bias_tokens[row * by.bias_tokens_row + i]);
    atomicAdd(&raised[BiasIndex::chain(token)], fmaxf(by.bias_values[row * by.bias_values_row + i], 0.f));
  }
}

__device__ __forceinline__ void write_token(const SampleParams& p, int64_t row, uint64_t best) {
  p.token[row] = best == 0 ? -1 : static_cast<int32_t>(token_of(best));
  p.valid[row] = best != 0;
}

template <class C>
__device__ __forceinline__ void sample_streamed(const SampleParams& p) {
  StreamShared& shared = *reinterpret_cast<StreamShared*>(dynamic_shared());
  const int64_t row = blockIdx.x / p.ctas;
  const uint32_t first = blockIdx.x % p.ctas * p.slice, end = min(static_cast<uint32_t>(p.vocab), first + p.slice);
  if (!is_valid_row(p, row)) return;
  ClusterRow cluster(shared.reduce, p.ctas);
  if (threadIdx.x == 0) shared.best = 0;
  flag_biases<C>(p, row, shared.flags, shared.index);
  raise_chains<C>(p, row, shared.raised);
  __syncthreads();
  const Row<C> logits(p, row, shared.flags, &shared.index);
  const uint64_t best = cluster.reduce(Stream<C>(logits, shared).best_of(first, end), Larger());
  if (blockIdx.x % p.ctas == 0 && threadIdx.x == 0) write_token(p, row, best);
  cluster.sync();  // no CTA exits while others read its shared memory
}

}  // namespace opfacade
