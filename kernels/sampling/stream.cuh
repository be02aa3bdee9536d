// Sampling without filters: each logit is read once and nothing is kept. The race is an argmax, so CTAs of a row merge by the
// larger key. Philox costs more than the read; a group whose largest logit cannot win with any noise skips it, and logarithms
// are computed only where the words are small enough to win against the best key of the CTA so far.
#pragma once
#include "kernels/sampling/cluster_row.cuh"
#include "kernels/sampling/noise.cuh"
#include "kernels/sampling/row.cuh"

namespace opfacade {

struct StreamShared {
  ReduceShared reduce;
  uint32_t best;  // ordered key that some thread of the CTA has found
  uint8_t flags[kBiasFlags];
};

static_assert(sizeof(StreamShared) <= kStreamShared, "as the binding launches it");

// Rows that are not valid are neither read nor written; a wrong count leaves none valid.
__device__ __forceinline__ bool is_valid_row(const SampleParams& p, int64_t row) {
  if (p.num_valid == nullptr) return true;
  const int64_t count = *p.num_valid;
  return count <= p.rows && row < count;
}

template <class C>
class Stream {
 public:
  __device__ __forceinline__ Stream(const Row<C>& row, StreamShared& shared) : row_(row), shared_(shared) {
    scale_ = kLog2E;
    if (C::kTemperature) scale_ = row.greedy() ? kLog2E : __fdiv_rn(kLog2E, row.temperature);
  }

  __device__ __forceinline__ uint64_t best_of(uint32_t first, uint32_t end) {
    const SampleParams& p = row_.p;
    const Philox philox(p.seed[row_.row], p.offset[row_.row], p.stream);
#pragma unroll 2
    for (uint32_t token = first + 4 * threadIdx.x; token < end; token += 4 * kSampleThreads) {
      float a[4];
      row_.load(token, a);
      row_.adjust(token, a);
      if (row_.greedy()) take<false>(token, a, nullptr);
      else race(philox, token, a);
    }
    return best_;
  }

 private:
  __device__ __forceinline__ void race(const Philox& philox, uint32_t token, const float (&a)[4]) {
    const float most = fmaxf(fmaxf(a[0], a[1]), fmaxf(a[2], a[3]));
    if (!is_candidate(most)) return;
    const Lead lead(&shared_.best, most * scale_);  // a product instead of the division
    if (lead.is_lost()) return;
    uint32_t words[4];
    philox.words(token / 4, words);
    if (lead.is_lost(words)) return;
    take<true>(token, a, words);
  }

  template <bool kNoise>
  __device__ __forceinline__ void take(uint32_t token, const float (&a)[4], const uint32_t* words) {
    const uint64_t before = best_;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!is_candidate(a[j])) continue;
      const float key = kNoise ? fmaf(row_.heated(a[j]), kLog2E, minus_log2_exponential(words[j])) : a[j];
      best_ = Larger()(best_, ranked(key, token + j));
    }
    if (kNoise && best_ != before) atomicMax(&shared_.best, static_cast<uint32_t>(best_ >> 32));
  }

  const Row<C>& row_;
  StreamShared& shared_;
  uint64_t best_ = 0;
  float scale_;
};

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
  flag_biases<C>(p, row, shared.flags);
  __syncthreads();
  const Row<C> logits(p, row, shared.flags);
  const uint64_t best = cluster.reduce(Stream<C>(logits, shared).best_of(first, end), Larger());
  if (blockIdx.x % p.ctas == 0 && threadIdx.x == 0) write_token(p, row, best);
  cluster.sync();  // no CTA exits while others read its shared memory
}

}  // namespace opfacade
