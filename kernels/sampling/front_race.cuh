// Finds the front in a part of a row: each logit is read once, and the tokens whose key no more likely token exceeds are noted.
// The noise of a group is computed only if its largest logit could reach the bound, and the group is examined only if the noise
// of one of its words could; few groups are.
#pragma once
#include "kernels/ptx/forget.cuh"
#include "kernels/sampling/chunk.cuh"
#include "kernels/sampling/front.cuh"

namespace opfacade {

template <class C>
class FrontRace {
 public:
  static constexpr uint32_t kAsked = 65536 / sizeof(typename Row<C>::Bits);  // tokens that are prefetched into the cache

  // The constructor issues the first loads before it waits for any: it reads the temperature of the row after them.
  __device__ __forceinline__ FrontRace(Row<C>& row, FrontShared& shared, uint32_t first, uint32_t end)
      : row_(row), front_(shared), first_(first), base_(first), end_(end), stop_(row.whole(first, end)) {
    if (sampled() < end_) row_.load(sampled(), sample_);
    if (kEarly) fetch_first();
    uint32_t at = row.row;
    forget_origin(at);  // otherwise the compiler moves these loads to the start of the kernel and waits for them there
    row.read_temperature(at);
    philox_ = Philox(row.p.seed[at], row.p.offset[at], row.p.stream);
    float scale = kLog2E;
    if (C::kTemperature && !row.greedy()) scale = __fdiv_rn(kLog2E, row.temperature);
    scale_ = scale;
    if constexpr (C::kMinP) {
      const float least = row.p.min_p[at];
      reach_ = least > 0.f ? fmaxf(-log2f(least), 0.f) : -minus_infinity();
    }
  }

  // Notes the front; its shared memory must be cleared. Called by all threads; contains barriers.
  __device__ __forceinline__ void run() {
    place();
    if (!kEarly) fetch_first();
    uint32_t due = first_ + kChunk;  // position at which the list is examined: after 1, 2, 4, ... chunks
#pragma unroll 1
    while (base_ < end_) {
      step();
      if (!kLists || (base_ < due && base_ < end_)) continue;
      look_at_listed();
      due = base_ + (base_ - first_);
    }
    if (!kLists) __syncthreads();
  }

 private:
  static constexpr uint32_t kStep = kGroupStep;
  static constexpr int kAhead = C::kAnywhere && C::kBitmask ? 2 : 4;
  static constexpr uint32_t kChunk = kAhead * kStep;
  // Whether close groups are listed. With 512 threads, 16-bit logits and p alone, the stream is faster if each warp examines its
  // own groups at once, without barriers; with fewer threads, it is slower.
  static constexpr bool kLists = kSampleThreads < 512 || sizeof(typename Row<C>::Bits) == 4 || C::kMinP;
  static constexpr bool kEarly = kAddedBytes<C> <= 16;  // loads the first chunk before the steps are known, if registers allow

  // The sampled group of each thread; the groups are spread over the part.
  __device__ __forceinline__ uint32_t sampled() const {
    return first_ + max(4u, (end_ - first_) / (4 * kSampleThreads) * 4) * threadIdx.x;
  }
  __device__ __forceinline__ uint32_t from() const { return base_ + 4 * threadIdx.x; }
  __device__ __forceinline__ void fetch_first() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) next_[i] = {};
    fetch();
  }
  __device__ __forceinline__ void fetch() { row_.fetch_added(from(), kStep, stop_, next_); }

  // Divides the range of log2-logits into steps, and computes their first bounds, both from the sampled groups (see front.cuh).
  __device__ __forceinline__ void place() {
    const bool has = sampled() < end_;
    float octaves[4];
    uint32_t most = 0, complement = 0, words[4];
    if (has) row_.adjust(sampled(), sample_);
    philox_.sparing().words(sampled() / 4, words);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      octaves[j] = has && is_candidate(sample_.a[j]) ? sample_.a[j] * scale_ : minus_infinity();
      if (octaves[j] == minus_infinity()) continue;
      most = max(most, ordered(octaves[j])), complement = max(complement, ~ordered(octaves[j]));
    }
    front_.measure(most, complement);
    __syncthreads();
    steps_ = front_.place_steps(scale_ > 0x1p-100f && scale_ < 0x1p100f);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float above = octaves[j] - steps_.base;
      if (octaves[j] > minus_infinity()) front_.sample(steps_, above, above + least_noise(words[j]));
    }
    __syncthreads();
    if (threadIdx.x < 32) front_.raise(steps_, reach_);
    __syncthreads();
  }

  // Examines the groups of a chunk while the next chunk is loaded.
  __device__ __forceinline__ void step() {
    const uint32_t first = from();
    uint32_t close;
    if (base_ < stop_) {
      float most[kAhead];
      if (base_ + kChunk <= stop_) take<true>(first, most);
      else take<false>(first, most);
      base_ += kChunk;
      fetch();
      ask();
      base_ = min(stop_, base_);
      close = near(first, most);
    } else {
      float most[1] = {minus_infinity()};
      if (first < end_) {
        Loaded<4> group;
        row_.load(first, group);
        most[0] = row_.bound_of(group);
      }
      base_ += kStep;
      close = near(first, most);
    }
    if (kLists && close != 0) close = list(first, close);
    if (__any_sync(0xffffffffu, close != 0)) look(first, close);
  }
  // Lists the groups of a thread for all warps to examine later, because few warps have many groups. Returns the groups that do
  // not fit in the list.
  __device__ __forceinline__ uint32_t list(uint32_t from, uint32_t close) const {
    uint32_t at = atomicAdd(&front_.num_close(slot_), static_cast<uint32_t>(__popc(close)));
    for (; close != 0 && at < kCloseRoom; close &= close - 1, ++at)
      front_.close()[at] = from + kStep * static_cast<uint32_t>(__ffs(static_cast<int>(close)) - 1);
    return close;
  }
  // Notes tokens of the listed groups, eight groups per warp at a time. Called by all threads; contains barriers.
  __device__ __forceinline__ void look_at_listed() {
    __syncthreads();
    const uint32_t count = min(front_.num_close(slot_), static_cast<uint32_t>(kCloseRoom));
#pragma unroll 1
    for (uint32_t base = threadIdx.x / 32 * 8; base < count; base += kSampleThreads / 4) {
      const uint32_t at = base + threadIdx.x % 32 / 4;
      look(at < count, at < count ? front_.close()[at] + threadIdx.x % 4 : 0);
    }
    slot_ ^= 1;
    __syncthreads();
    if (threadIdx.x == 0) front_.num_close(slot_ ^ 1) = 0;
  }
  __device__ __forceinline__ void ask() const {
    const uint32_t to = min(end_, base_ + kAsked), from = min(to, base_ + kAsked - kChunk);
    row_.ask(from, to);
  }

  // Upper bounds of the fetched groups; -inf from `stop_` on. kWhole: all groups are before `stop_`.
  template <bool kWhole>
  __device__ __forceinline__ void take(uint32_t from, float (&most)[kAhead]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t token = from + kStep * i;
      Loaded<4> group;
      row_.unpack(token, next_[i], group);
      const float bound = row_.bound_of(group);
      most[i] = kWhole || token < stop_ ? bound : minus_infinity();
    }
  }

  // The largest random word with which a token of about these octaves can reach its bound.
  __device__ __forceinline__ uint32_t most_word(float octaves) const { return __float2uint_rz(exp2_approx(front_.leeway(steps_, octaves))); }

  // A bit for each group that may have a token on the front.
  template <int kCount>
  __device__ __forceinline__ uint32_t near(uint32_t from, const float (&most)[kCount]) const {
    float leeway[kCount], widest = minus_infinity();
#pragma unroll
    for (int i = 0; i < kCount; ++i) leeway[i] = front_.leeway(steps_, steps_.octaves(most[i], scale_)), widest = fmaxf(widest, leeway[i]);
    uint32_t close = 0;
    if (!(widest > -1.f)) return close;
    uint32_t groups[kCount], least[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) groups[i] = (from + kStep * i) / 4;
    philox_.least_words(groups, least);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool is = is_candidate(most[i]) && least[i] <= __float2uint_rz(exp2_approx(leeway[i]));
      close |= is ? 1u << i : 0;
    }
    return close;
  }

  // Notes tokens of these groups at once: several groups at a time, one token per lane. Called by whole warps.
  __device__ __forceinline__ void look(uint32_t from, uint32_t close) const {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t* const listed = front_.own_close();
#pragma unroll 1
    for (;;) {
      const uint32_t all = __ballot_sync(0xffffffffu, close != 0), before = static_cast<uint32_t>(__popc(all & ((1u << lane) - 1)));
      if (all == 0) return;
      if (close != 0 && before < 8) {
        listed[before] = from + kStep * static_cast<uint32_t>(__ffs(static_cast<int>(close)) - 1);
        close &= close - 1;
      }
      __syncwarp();
      const bool is = lane / 4 < static_cast<uint32_t>(__popc(all));
      look(is, is ? listed[lane / 4] + lane % 4 : 0);
      __syncwarp();
    }
  }
  // Notes the token of each lane with `is` if its exact key is on the front.
  __device__ __forceinline__ void look(bool is, uint32_t token) const {
    float a = minus_infinity(), x = a;
    Loaded<1> one;
    if (is) row_.load(token, one);
    const uint32_t word = philox_.sparing().word(token);
    if (is) row_.adjust(token, one), x = one.a[0], a = row_.heated(x);
    const float octaves = steps_.octaves(a, kLog2E);
    is = is_candidate(a) && word <= most_word(octaves);
    if (!__any_sync(0xffffffffu, is)) return;
    const float noise = minus_log2_exponential(word);
    const Noted own{ranked(a, token), ordered(fmaf(a, kLog2E, noise)), x};
    front_.note(is, steps_, octaves, octaves + noise, own, reach_);
  }

  const Row<C>& row_;
  const Front front_;
  Philox philox_;
  FrontScale steps_{};
  Packed<C> next_[kAhead];
  Loaded<4> sample_;
  uint32_t first_, base_, end_, stop_, slot_ = 0;  // slot_: of the current list
  float scale_, reach_ = -minus_infinity();
};

}  // namespace opfacade
