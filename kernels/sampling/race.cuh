// The race of a row (Gumbel-max): finds the largest key, a logit plus noise. A call of Philox serves a group of four tokens; it
// is skipped if the largest logit of the group cannot win with any noise, and the logarithms are skipped if no word is small
// enough.
#pragma once
#include "kernels/sampling/cluster_row.cuh"
#include "kernels/sampling/noise.cuh"

namespace opfacade {

// kSparing: for kernels with few free registers.
template <bool kSparing = false>
class Race {
 public:
  // best: the largest key of the CTA so far, as an ordered integer in shared memory; 0 when a race begins.
  __device__ __forceinline__ Race(const SampleParams& p, int64_t row, uint32_t* best)
      : philox_(p.seed[row], p.offset[row], p.stream), best_(best) {}

  // a: -inf for tokens that do not take part. about: approximate factor from a to octaves. octaves(a, noise): the exact key.
  template <class F>
  __device__ __forceinline__ void group(uint32_t first, const float (&a)[4], float about, F octaves) {
    const float most = fmaxf(fmaxf(a[0], a[1]), fmaxf(a[2], a[3]));
    if (!is_candidate(most)) return;
    const Lead lead(best_key(best_), most * about);
    if (lead.is_lost()) return;
    uint32_t words[4];
    (kSparing ? philox_.sparing() : philox_).words(first / 4, words);
    if (lead.is_lost(words)) return;
    const uint64_t before = found_;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (is_candidate(a[j])) found_ = Larger()(found_, ranked(octaves(a[j], minus_log2_exponential(words[j])), first + j));
    if (found_ != before) atomicMax(best_, static_cast<uint32_t>(found_ >> 32));
  }
  // The winner of this thread.
  __device__ __forceinline__ uint64_t found() const { return found_; }

 private:
  Philox philox_;
  uint32_t* best_;
  uint64_t found_ = 0;
};

}  // namespace opfacade
