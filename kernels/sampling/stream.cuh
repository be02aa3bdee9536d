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
};

static_assert(sizeof(StreamShared) <= kStreamShared, "as the binding launches it");

// Rows that are not valid are neither read nor written; a wrong count leaves none valid.
__device__ __forceinline__ bool is_valid_row(const SampleParams& p, int64_t row) {
  if (p.num_valid == nullptr) return true;
  const int64_t count = *p.num_valid;
  return count <= p.rows && row < count;
}

// The race of a part of a row. Groups of a chunk are loaded together. A group is looked at closely where the noise of a word, if E
// is no more than its uniform, may win: few groups are, and those are read again.
template <class C>
class Stream {
 public:
  __device__ __forceinline__ Stream(const Row<C>& row, StreamShared& shared)
      : row_(row), shared_(shared), philox_(row.p.seed[row.row], row.p.offset[row.row], row.p.stream) {
    scale_ = kLog2E, most_noise_ = kMostNoise;
    if (C::kTemperature) scale_ = row.greedy() ? 1.f : __fdiv_rn(kLog2E, row.temperature);
    if (row.greedy()) most_noise_ = 0.f;
  }

  // The largest key of the tokens from `first` to `end` in this thread, and which token has it.
  __device__ __forceinline__ uint64_t best_of(uint32_t first, uint32_t end) {
    const uint32_t stop = row_.whole(first, end);
    uint32_t from = first + 4 * threadIdx.x, base = first, close = from < end;  // a bit for each group to look at
#pragma unroll 1
    for (bool begins = true;; begins = false) {
#pragma unroll 1
      for (; close != 0; close &= close - 1) look(from + kStep * static_cast<uint32_t>(__ffs(static_cast<int>(close)) - 1));
      if (begins) __syncthreads();  // a first key of each thread bounds what can win
      if (base >= end) return found_;
      from = base + 4 * threadIdx.x;
      float a[kAhead][4];
      const bool wide = base < stop;
      const auto approach = [&](uint32_t token, Loaded<4>& group) { row_.approach(token, group); };
      if (wide) read_wide<C>(row_, from, stop, a, approach);
      else read_narrow<C>(row_, from, end, a, approach);
      base = wide ? min(stop, base + kAhead * kStep) : base + kStep;
      close = near(from, a);
    }
  }

 private:
  static constexpr uint32_t kStep = kGroupStep;
  static constexpr int kAhead = kGroupsAhead<C>;

  __device__ __forceinline__ uint32_t near(uint32_t from, const float (&a)[kAhead][4]) const {
    uint32_t close = 0;
    float best = 0.f;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i % 4 == 0) best = best_key(&shared_.best);
      const float most = fmaxf(fmaxf(a[i][0], a[i][1]), fmaxf(a[i][2], a[i][3]));
      const Lead lead(best, most * scale_);
      if (!is_candidate(most) || lead.is_lost(most_noise_)) continue;
      uint32_t words[4] = {0, 0, 0, 0};
      if (!row_.greedy()) philox_.words((from + kStep * i) / 4, words);
      if (!lead.is_lost(words)) close |= 1u << i;
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
  float scale_, most_noise_;  // scale: a product instead of the division
  uint64_t found_ = 0;
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
