// Noise of a race: a pure function of (seed; token, offset, stream), independent of the row's position in the batch.
#pragma once
#include "kernels/sampling/order.cuh"

namespace opfacade {

// Words of tokens 4 * group to 4 * group + 3: Philox4x32-10 with the seed as key. Half of the first two rounds is the same for all
// groups.
struct Philox {
  uint32_t key[2], second, even, odd, low;

  Philox() = default;
  __device__ __forceinline__ Philox(int64_t seed, int64_t position, uint32_t stream)
      : key{static_cast<uint32_t>(seed), static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32)} {
    const uint64_t third = wide_product(kThird, static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32));
    const uint64_t next = wide_product(kFirst, static_cast<uint32_t>(third >> 32) ^ static_cast<uint32_t>(position) ^ key[0]);
    second = stream ^ key[1];
    even = static_cast<uint32_t>(third) ^ (key[0] + kKey0);
    odd = static_cast<uint32_t>(next >> 32) ^ (key[1] + kKey1), low = static_cast<uint32_t>(next);
  }

  // The same noise, but the round keys are computed in each call: otherwise the compiler keeps them in 16 registers throughout
  // a loop.
  __device__ __forceinline__ Philox sparing() const {
    Philox own = *this;
    asm volatile("" : "+r"(own.key[0]), "+r"(own.key[1]));
    return own;
  }

  __device__ __forceinline__ void words(uint32_t group, uint32_t (&c)[4]) const {
    const uint64_t begin = wide_product(kFirst, group), other = wide_product(kThird, static_cast<uint32_t>(begin >> 32) ^ second);
    c[0] = static_cast<uint32_t>(other >> 32) ^ even, c[1] = static_cast<uint32_t>(other);
    c[2] = static_cast<uint32_t>(begin) ^ odd, c[3] = low;
    uint32_t k0 = key[0] + 2 * kKey0, k1 = key[1] + 2 * kKey1;
#pragma unroll
    for (int round = 2; round < 10; ++round) {
      const uint64_t first = wide_product(kFirst, c[0]), third = wide_product(kThird, c[2]);
      c[0] = static_cast<uint32_t>(third >> 32) ^ c[1] ^ k0, c[1] = static_cast<uint32_t>(third);
      c[2] = static_cast<uint32_t>(first >> 32) ^ c[3] ^ k1, c[3] = static_cast<uint32_t>(first);
      k0 += kKey0, k1 += kKey1;
    }
  }
  // The smallest word of each of several groups, whose chains of multiplications are interleaved.
  template <int kCount>
  __device__ __forceinline__ void least_words(const uint32_t (&groups)[kCount], uint32_t (&least)[kCount]) const {
    uint32_t c[kCount][4], k0 = key[0] + 2 * kKey0, k1 = key[1] + 2 * kKey1;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint64_t begin = wide_product(kFirst, groups[i]), other = wide_product(kThird, static_cast<uint32_t>(begin >> 32) ^ second);
      c[i][0] = static_cast<uint32_t>(other >> 32) ^ even, c[i][1] = static_cast<uint32_t>(other);
      c[i][2] = static_cast<uint32_t>(begin) ^ odd, c[i][3] = low;
    }
#pragma unroll
    for (int round = 2; round < 10; ++round) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint64_t first = wide_product(kFirst, c[i][0]), third = wide_product(kThird, c[i][2]);
        c[i][0] = static_cast<uint32_t>(third >> 32) ^ c[i][1] ^ k0, c[i][1] = static_cast<uint32_t>(third);
        c[i][2] = static_cast<uint32_t>(first >> 32) ^ c[i][3] ^ k1, c[i][3] = static_cast<uint32_t>(first);
      }
      k0 += kKey0, k1 += kKey1;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) least[i] = min(min(c[i][0], c[i][1]), min(c[i][2], c[i][3]));
  }
  __device__ __forceinline__ uint32_t word(uint32_t token) const {
    uint32_t words[4];
    this->words(token / 4, words);
    const uint32_t even = token & 2 ? words[2] : words[0], odd = token & 2 ? words[3] : words[1];
    return token & 1 ? odd : even;
  }

 private:
  static constexpr uint32_t kFirst = 0xD2511F53u, kThird = 0xCD9E8D57u, kKey0 = 0x9E3779B9u, kKey1 = 0xBB67AE85u;
};

constexpr float kMostNoise = 33.f;  // noise of word 0

// -log2 E with E = -ln(1 - (word + 1/2) 2^-32), from -4.6 to 33: a series near 0, where 1 - u would round to 1, and the
// logarithm of the complement elsewhere. Error at most 4e-6.
__device__ __forceinline__ float minus_log2_exponential(uint32_t word) {
  const float v = fmaf(static_cast<float>(word), 0x1p-32f, 0x1p-33f), rest = fmaf(static_cast<float>(~word), 0x1p-32f, 0x1p-33f);
  const float e = word < 1u << 26 ? fmaf(v * v, fmaf(v, fmaf(v, 0.25f, 0x1.555556p-2f), 0.5f), v) : -logf(rest);
  return -log2f(e);
}

// A lower bound of it with fewer instructions: E is at most u / (1 - u).
__device__ __forceinline__ float least_noise(uint32_t word) {
  const float v = fmaf(static_cast<float>(word), 0x1p-32f, 0x1p-33f), rest = fmaf(static_cast<float>(~word), 0x1p-32f, 0x1p-33f);
  return log2_approx(rest) - log2_approx(v);
}

// How far the best key so far is above tokens whose largest key without noise is about `most`. The margins cover the rounding
// of a key.
class Lead {
 public:
  __device__ __forceinline__ Lead(float best, float most) {
    const float least = fmaxf(most, -kLargest * kLog2E);  // a lower bound of all keys before their noise
    need_ = best - (most < kLargest ? fmaf(fabsf(least), 0x1p-20f, least + 0x1p-6f) : -minus_infinity());
  }
  // True if a token loses whatever its noise is.
  __device__ __forceinline__ bool is_lost(float most_noise = kMostNoise) const { return need_ > most_noise; }
  // True if a token with one of these words loses. E is at least u, so noise above `need_` needs a word up to 2^(32 - need_).
  __device__ __forceinline__ bool is_lost(const uint32_t (&words)[4]) const {
    const uint32_t most = need_ > 0.f ? __float2uint_rz(exp2_approx(32.f - need_)) : ~0u;
    return min(min(words[0], words[1]), min(words[2], words[3])) > most;
  }

 private:
  float need_;  // noise that a winner needs
};

// The largest key of a CTA so far, as an ordered integer in shared memory, which the threads raise with atomicMax; 0 before the
// first.
__device__ __forceinline__ float best_key(const uint32_t* best) {
  const uint32_t known = *static_cast<const volatile uint32_t*>(best);
  return known == 0 ? minus_infinity() : of_ordered(known);
}

}  // namespace opfacade
