// Sampling without filters: each logit is read once and nothing is kept. The race is an argmax, so CTAs of a row merge by the
// larger key.
#pragma once
#include "kernels/sampling/cluster_row.cuh"
#include "kernels/sampling/race.cuh"
#include "kernels/sampling/row.cuh"

namespace opfacade {

struct StreamShared {
  ReduceShared reduce;
  uint32_t best;  // ordered key that some thread of the CTA has found
  uint8_t flags[kBiasFlags];
  BiasIndex index;
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
    if (row_.greedy()) {
      uint64_t best = 0;
      row_.each_group(first, end, [&](uint32_t token, const float (&a)[4]) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (is_candidate(a[j])) best = Larger()(best, ranked(a[j], token + j));
      });
      return best;
    }
    Race race(row_.p, row_.row, &shared_.best);
    row_.each_group(first, end, [&](uint32_t token, const float (&a)[4]) {
      race.group(token, a, scale_, [&](float logit, float noise) { return fmaf(row_.heated(logit), kLog2E, noise); });
    });
    return race.found();
  }

 private:
  const Row<C>& row_;
  StreamShared& shared_;
  float scale_;  // a product instead of the division
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
  flag_biases<C>(p, row, shared.flags, shared.index);
  __syncthreads();
  const Row<C> logits(p, row, shared.flags, &shared.index);
  const uint64_t best = cluster.reduce(Stream<C>(logits, shared).best_of(first, end), Larger());
  if (blockIdx.x % p.ctas == 0 && threadIdx.x == 0) write_token(p, row, best);
  cluster.sync();  // no CTA exits while others read its shared memory
}

}  // namespace opfacade
