// Sampling without filters: each logit is read once and nothing is stored. The race is an argmax, so the CTAs of a row merge by
// the larger key.
#pragma once
#include "kernels/ptx/cluster_store.cuh"
#include "kernels/sampling/chunk.cuh"
#include "kernels/sampling/cluster_row.cuh"
#include "kernels/sampling/own_row.cuh"
#include "kernels/sampling/race.cuh"

namespace opfacade {

constexpr uint32_t kCloseRoom = 5 * kSampleThreads;  // at least the number of groups in a chunk

struct StreamShared {
  ReduceShared reduce;
  uint64_t of_cta[kMostCtas];  // best key of each CTA, stored in the first CTA
  uint32_t best;          // ordered integer of the largest key that a thread of the CTA has found
  uint32_t num_close[2];  // sizes of the current list, and of the next one
  uint32_t close[kCloseRoom];
  uint8_t flags[kBiasFlags];
  BiasIndex index;
  Biased biased[kBiasedCopied];

  __device__ __forceinline__ void clear() { best = num_close[0] = num_close[1] = 0; }
};

static_assert(sizeof(StreamShared) <= kStreamShared, "as the binding launches it");

// The race over a part of a row. A group is listed if one of its words may give a winning key, by the bound E >= u. Few groups
// are listed. From time to time all threads examine the list, one token per thread: the tokens are read again, and the best key
// increases.
template <class C>
class Stream {
 public:
  // The constructor issues the first loads.
  __device__ __forceinline__ Stream(const Row<C>& row, StreamShared& shared, uint32_t first, uint32_t end)
      : row_(row), shared_(shared), philox_(row.p.seed[row.row], row.p.offset[row.row], row.p.stream), base_(first), end_(end),
        stop_(row.whole(first, end)) {
    if (!kSpans) ask_groups(2);
    scale_ = kLog2E;
    if (C::kTemperature) scale_ = row.greedy() ? 1.f : __fdiv_rn(kLog2E, row.temperature);
    if (C::kPenalties && !row.lowers) row.ask_counts(first, min(end, first + kAsked));
  }

  // The largest key among the tokens of this thread, and its token. Called by all threads.
  __device__ __forceinline__ uint64_t best() {
    uint32_t due = base_;  // position at which the list is next examined
    list_first();
#pragma unroll 1
    for (;;) {
      if (base_ >= due) {
        if (!look_at_listed()) base_ = first(), slot_ |= kCrowded;  // restarts: storing another position needs a register
        if (slot_ & kCrowded) due = base_ + kChunk;
        else due = base_ == first() ? base_ + 2 * kChunk : base_ + 3 * min(base_ - first(), end_ / 4);
        due = min(due, end_);
        fetch_anew();
      }
      if (base_ < end_) step(due);
      else return found_;
    }
  }

  static constexpr bool kSpans = !C::kBias;           // a bias doubles the bytes: single groups are prefetched then
  static constexpr uint32_t kAsked = 4 * kGroupStep;  // tokens that are prefetched; more would delay the first ones

 private:
  static constexpr uint32_t kStep = kGroupStep, kFirst = 128;  // a few groups give the first key
  static constexpr bool kCrammed = C::kBiasList && C::kPenalties;  // few registers are left for prefetching
  static constexpr int kAhead = !kCrammed && kAddedBytes<C> + 4 * int{C::kBiasList} + 4 * int{C::kPenalties} <= 20 ? 4 : 2;
  static constexpr uint32_t kChunk = kAhead * kStep;
  static constexpr uint32_t kCrowded = 2;  // a bit of `slot_`: many groups may win, so each chunk has its list
  static_assert(kAhead * kSampleThreads <= kCloseRoom, "a list of a chunk fits");

  __device__ __forceinline__ uint32_t first() const { return rank_of(row_.p) * row_.p.slice; }
  __device__ __forceinline__ uint32_t from() const { return base_ + 4 * threadIdx.x; }

  // Loads the chunk at `base_`, without the operands of penalties: these take registers, and few rows need them.
  __device__ __forceinline__ void fetch() {
    row_.fetch_added(from(), kStep, stop_, next_);
  }

  // The same, but discards what was fetched before, so that no register keeps it while the list is examined.
  __device__ __forceinline__ void fetch_anew() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) next_[i] = {};
    fetch();
  }

  // Prefetches chunks from `base_` on into the cache.
  __device__ __forceinline__ void ask_groups(int chunks) const {
#pragma unroll
    for (int i = 0; i < chunks * kAhead; ++i)
      if (from() + kStep * i < stop_) row_.ask_added(from(), kStep * i);
  }

  // Prefetches the chunk that ends at `base_` + kAsked into the cache.
  __device__ __forceinline__ void ask() const {
    const uint32_t to = min(end_, base_ + kAsked), from = min(to, base_ + kAsked - kChunk);
    if (kSpans) row_.ask(from, to);
    if (C::kPenalties && !row_.lowers) row_.ask_counts(from, to);
  }

  // Lists groups of a chunk while the next chunk is loaded: into registers, unless they are needed to examine the list first.
  __device__ __forceinline__ void step(uint32_t due) {
    const uint32_t first = from();
    float most[kAhead];
    if (base_ < stop_) {
      take(first, most);
      base_ += kChunk;
      if (base_ < due) fetch();
      else if (!kSpans) ask_groups(1);
      ask();
      base_ = min(stop_, base_);
    } else {
      take_narrow(first, most);
      base_ += kStep;
    }
    list(first, near(first, most));
  }

  // Upper bounds of the fetched groups; -inf from `stop_` on. Biases from a list are not included: their tokens are examined
  // separately.
  __device__ __forceinline__ void take(uint32_t from, float (&most)[kAhead]) const {
#pragma unroll
    for (int first = 0; first < kAhead; first += 2) {
      Packed<C> two[2] = {next_[first], next_[first + 1]};
      if (C::kPenalties && !row_.lowers) fetch_counts(from + kStep * first, two);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t token = from + kStep * (first + i);
        Loaded<4> group;
        row_.unpack(token, two[i], group);
        const float bound = row_.bound_of(group);
        most[first + i] = token < stop_ ? bound : minus_infinity();
      }
    }
  }
  // The counts are in the cache, so few loads need to be in flight.
  __device__ __forceinline__ void fetch_counts(uint32_t from, Packed<C> (&two)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (from + kStep * i < stop_) row_.fetch_counts(from, kStep * i, two[i]);
  }
  // The bound of one group, of any alignment.
  __device__ __forceinline__ void take_narrow(uint32_t token, float (&most)[kAhead]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) most[i] = minus_infinity();
    if (token >= end_) return;
    Loaded<4> group;
    row_.load(token, group);
    most[0] = row_.bound_of(group);
  }

  // A finite logit below the range is clamped to its lower end before the division.
  __device__ __forceinline__ float heated(float bound) const { return fmaxf(bound, -kLargest) * scale_; }

  // A bit for each group that may contain the winner. Groups are tested in pairs, so that two calls of Philox, each a chain of
  // dependent multiplications, overlap.
  __device__ __forceinline__ uint32_t near(uint32_t from, const float (&most)[kAhead]) {
    const float noise = row_.greedy() ? 0.f : kMostNoise;
    uint32_t close = 0;
#pragma unroll
    for (int i = 0; i < kAhead; i += 2) {
      const Lead lead(least_, heated(most[i])), other(least_, heated(most[i + 1]));
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

  __device__ __forceinline__ void list(uint32_t from, uint32_t close) {
    if (close == 0) return;
    uint32_t at = atomicAdd(&shared_.num_close[slot_ & 1], static_cast<uint32_t>(__popc(close)));
    for (; close != 0; close &= close - 1, ++at) {
      const uint32_t token = from + kStep * static_cast<uint32_t>(__ffs(static_cast<int>(close)) - 1);
      if (at < kCloseRoom) shared_.close[at] = token;
      row_.ask_counts(token);
    }
  }
  __device__ __forceinline__ void list_first() {
    if (threadIdx.x < kFirst) list(from(), from() < end_);
  }
  // Examines the biased tokens, which may exceed the bounds of their groups. This comes last, when they are in the cache, and
  // begins with the last threads, because the first threads have the tokens of a list.
  __device__ __forceinline__ void look_at_biased() {
#pragma unroll 1
    for (int at = kSampleThreads - 1 - static_cast<int>(threadIdx.x); at < row_.p.adjust.num_biases; at += kSampleThreads) {
      const uint32_t token = biased_token(at);
      if (token >= first() && token < end_) look(token);
    }
  }

  __device__ __forceinline__ uint32_t biased_token(int at) const {
    return (at < kBiasedCopied ? shared_.biased[at] : biased<C>(row_.p, row_.row, at)).token;
  }

  // Returns false if the list overflowed.
  __device__ __forceinline__ bool look_at_listed() {
    __syncthreads();
    const uint32_t count = shared_.num_close[slot_ & 1];
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < 4 * min(count, kCloseRoom); i += kSampleThreads) look(shared_.close[i / 4] + i % 4);
    if (C::kBiasList && base_ >= end_) look_at_biased();
    tell();
    slot_ ^= 1;
    __syncthreads();
    least_ = best_key(&shared_.best);
    if (threadIdx.x == 0) shared_.num_close[~slot_ & 1] = 0;
    return __all_sync(0xffffffffu, count <= kCloseRoom);
  }

  // Computes the exact key of a token.
  __device__ __forceinline__ void look(uint32_t token) {
    Loaded<1> one;
    row_.load(token, one);
    row_.adjust(token, one);
    const float a = one.a[0];
    if (!is_candidate(a)) return;
    const float noisy = fmaf(row_.heated(a), kLog2E, minus_log2_exponential(philox_.word(token)));
    const uint64_t own = ranked(row_.greedy() ? a : noisy, token);
    if (own > found_) found_ = own;
  }
  // Publishes the best key of the warp to the CTA, by one thread: atomics of many threads on one word are serialised.
  __device__ __forceinline__ void tell() const {
    __syncwarp();
    const uint32_t most = __reduce_max_sync(0xffffffffu, static_cast<uint32_t>(found_ >> 32));
    if (threadIdx.x % 32 == 0 && most > 0) atomicMax(&shared_.best, most);
  }

  const Row<C>& row_;
  StreamShared& shared_;
  Philox philox_;
  Packed<C> next_[kAhead];
  uint32_t base_, end_, stop_;
  float scale_, least_ = minus_infinity();  // factor that replaces the division; the best key when the list was last examined
  uint64_t found_ = 0;
  uint32_t slot_ = 0;  // bit 0: of the current list
};

// The best key of the row, in the first warp of the first CTA. All CTAs send theirs to this CTA and read from none, so each may
// exit.
__device__ __forceinline__ uint64_t best_of_row(const SampleParams& p, StreamShared& shared, uint64_t best) {
  cluster_wait();  // the first CTA is running
  if (threadIdx.x == 0)
    cluster_store_two_words(cluster_address(smem_address(&shared.of_cta[rank_of(p)]), 0), best);
  __syncwarp();
  cluster_sync();
  const int lane = static_cast<int>(threadIdx.x % 32);
  return ClusterRow::join(lane < p.ctas ? shared.of_cta[lane] : 0, Larger());
}

template <class C>
__device__ __forceinline__ void sample_streamed(const SampleParams& p) {
  StreamShared& shared = *reinterpret_cast<StreamShared*>(dynamic_shared());
  const int64_t row = blockIdx.x / p.ctas;
  const uint32_t first = rank_of(p) * p.slice, end = min(static_cast<uint32_t>(p.vocab), first + p.slice);
  if (!is_valid_row(p, row)) return;
  const bool alone = p.ctas == 1;
  if (!alone) cluster_arrive();
  const Biased biased = first_biased<C>(p, row);
  const Row<C> logits(p, row, shared.flags, &shared.index, shared.biased);
  if (Stream<C>::kSpans) logits.ask(first, min(end, first + Stream<C>::kAsked));
  logits.ask_counts(first, min(end, first + 4 * kSampleThreads));
  Stream<C> stream(logits, shared, first, end);
  if (threadIdx.x == 0) shared.clear();
  flag_biases<C>(p, row, shared.flags, shared.index, biased, shared.biased);
  if (!C::kBiasList) __syncthreads();
  uint64_t best = ClusterRow::cta_reduce(shared.reduce.warp, stream.best(), Larger());
  if (!alone) best = best_of_row(p, shared, best);
  if (rank_of(p) == 0 && threadIdx.x == 0) write_token(p, row, best);
}

}  // namespace opfacade
