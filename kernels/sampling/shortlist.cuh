// The first k tokens of a row for a small k: a team of CTAs streams the row, and nothing is held. Each thread tracks its
// largest token so far, and k of these give a lower bound of the first k tokens: few groups reach it and are noted and read
// again, even fewer tokens are sorted, and the sorted lists of the team are merged.
#pragma once
#include "kernels/sampling/chunk.cuh"
#include "kernels/sampling/kept.cuh"

namespace opfacade {

constexpr int kWarps = kSampleThreads / 32;
static_assert(kWarps >= kShortK / 16, "two tokens of each warp bound the first k");
constexpr uint32_t kCrowded = ~0u;

struct ShortShared {
  uint64_t noted[kNoted];  // bits of a group's largest logit, and its first token; then the first k of the row
  uint64_t own[kSorted];   // as `ranked`, in any order
  uint64_t warp[kWarps];
  float sample[2][32];
  uint64_t listed[kMostCtas];  // list length of each CTA of the cluster; kCrowded if its list overflowed
  uint32_t num_noted, num_own;
  // Parameters of the row for the final draw; k is 0 if no short list draws it.
  int64_t seed, offset;
  float share, most;
  int32_t k, greedy, is_held;
};
static_assert(kShortK <= kNoted, "a list in place of notes");

// Sorts the values of a warp's lanes, the largest first.
__device__ __forceinline__ float sorted_lanes(float value) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int size = 2; size <= 32; size *= 2) {
#pragma unroll
    for (int step = size / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, value, step);
      const bool first = ((lane & step) == 0) == ((lane & size) == 0);
      value = first ? fmaxf(value, other) : fminf(value, other);
    }
  }
  return value;
}

// Finds the candidates in one CTA's part of the row.
template <class C>
class Shortlist {
 public:
  // Tokens from `first` to `end`; the constructor issues the loads of the first chunk.
  __device__ __forceinline__ Shortlist(const Row<C>& row, ShortShared& shared, uint32_t first, uint32_t end)
      : row_(row), shared_(shared), base_(first), end_(end), stop_(row.whole(first, end)) {
    fetch();
  }

  // Collects the tokens that may be among the first k, 1 to kShortK, in any order.
  __device__ __forceinline__ void find(int k) {
    k_ = k;
    stream();
    __syncthreads();
    refine();
  }

 private:
  static constexpr uint32_t kStep = kGroupStep;
  static constexpr int kAhead = kGroupsAhead<C>;

  __device__ __forceinline__ uint32_t from() const { return base_ + 4 * threadIdx.x; }

  // Loads the chunk at `base_`.
  __device__ __forceinline__ void fetch() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) next_[i] = {};
    row_.fetch(from(), kStep, stop_, next_);
  }
  // The largest logit of each group; -inf from `stop_` on.
  __device__ __forceinline__ void take(float (&most)[kAhead]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t token = from() + kStep * i;
      Loaded<4> loaded;
      row_.unpack(token, next_[i], loaded);
      if (token < stop_) row_.change(token, loaded);
      most[i] = token < stop_ ? largest(loaded.a) : minus_infinity();
    }
  }
  // The same for one group, of any alignment.
  __device__ __forceinline__ void take_narrow(float (&most)[kAhead]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) most[i] = minus_infinity();
    if (from() >= end_) return;
    Loaded<4> loaded;
    row_.load(from(), loaded);
    row_.change(from(), loaded);
    most[0] = largest(loaded.a);
  }

  // The next chunk is in flight while the bound is computed: groups are read again rather than kept in registers.
  __device__ __forceinline__ void stream() {
    uint32_t chunks = 0;
#pragma unroll 1
    while (base_ < end_) {
      float most[kAhead];
      const uint32_t from = this->from();
      if (base_ < stop_) {
        take(most);
        base_ = min(stop_, base_ + kAhead * kStep);
        fetch();
      } else {
        take_narrow(most);
        base_ += kStep;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) most_ = fmaxf(most_, most[i]);
      ++chunks;
      // The bound is updated when the number of chunks is a power of two: about twice as many tokens reach the bound of half
      // the row. The last chunk uses the bound of all.
      if ((chunks & (chunks - 1)) == 0 || base_ >= end_) bound();
      note(from, most);
    }
  }

  static __device__ __forceinline__ float largest(const float (&a)[4]) { return fmaxf(fmaxf(a[0], a[1]), fmaxf(a[2], a[3])); }

  // Notes the groups that may contain a token of the first k; they are few.
  __device__ __forceinline__ void note(uint32_t from, const float (&most)[kAhead]) {
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) count += most[i] >= least_;
    if (count == 0) return;
    uint32_t at = atomicAdd(&shared_.num_noted, count);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!(most[i] >= least_)) continue;
      if (at < kNoted) shared_.noted[at] = uint64_t{__float_as_uint(most[i])} << 32 | (from + kStep * i);
      ++at;
    }
  }

  // Called by all threads: at least k tokens reach the bound. Each warp contributes its s-th and 2 s-th largest token. The
  // bound is the (k / s)-th largest of these, and each of them stands for s tokens of its warp that are at least as large.
  __device__ __forceinline__ void bound() {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int each = (k_ + kWarps - 1) / kWarps;
    float value = sorted_lanes(most_);
    slot_ ^= 1;  // a warp may still read the previous samples
    if (lane == each - 1) shared_.sample[slot_][warp] = value;
    if (lane == 2 * each - 1) shared_.sample[slot_][kWarps + warp] = value;
    __syncthreads();
    value = sorted_lanes(lane < 2 * kWarps ? shared_.sample[slot_][lane] : minus_infinity());
    least_ = least_with(__shfl_sync(0xffffffffu, value, (k_ + each - 1) / each - 1));
  }

  // A lower bound of all tokens that may equal x after the adjustment; above -inf.
  __device__ __forceinline__ float least_with(float x) const {
    const float heat = !C::kTemperature || row_.greedy() ? 1.f : row_.temperature;
    const float least = x - fmaf(fabsf(x), 0x1p-20f, heat * 0x1p-148f), edge = fminf(heat, 1.f) * 0x1.ffp126f;
    const bool all = !(least > -edge);  // far below the range, all tokens have the same value, and so far above
    return all ? -0x1.fffffep127f : fminf(least, edge);
  }

  // Re-checks the noted groups against the final bound: skips those whose maximum is below it, and ranks the tokens of the rest
  // that reach it.
  __device__ __forceinline__ void refine() {
    const int noted = min(static_cast<int>(shared_.num_noted), kNoted);
#pragma unroll 1
    for (int i = threadIdx.x; i < noted; i += kSampleThreads) {
      const uint64_t own = shared_.noted[i];
      if (!(__uint_as_float(static_cast<uint32_t>(own >> 32)) >= least_)) continue;
      const uint32_t token = static_cast<uint32_t>(own);
      Loaded<4> group;
      row_.load(token, group);
      row_.change(token, group);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!(group.a[j] >= least_)) continue;
        const uint32_t at = atomicAdd(&shared_.num_own, 1u);
        if (at < kSorted) shared_.own[at] = ranked(row_.settled(group.a[j]), token + j);
      }
    }
  }

  const Row<C>& row_;
  ShortShared& shared_;
  Packed<C> next_[kAhead];
  uint32_t base_, end_, stop_;
  int k_ = 0, slot_ = 0;
  float most_ = minus_infinity(), least_ = 0.f;
};

// Sends the lists of a team to its first CTA, and merges them. size: CTAs of the team, a power of two. first: rank of the
// team's first CTA in the cluster.
class TeamLists {
 public:
  __device__ __forceinline__ TeamLists(ShortShared& shared, uint64_t* lists, int size, int first)
      : shared_(shared), lists_(lists), size_(size), first_(first) {}

  // Sorts the candidates of this CTA, sends its first k to the team's first CTA, and sends their number, which it returns, to
  // all CTAs. In a team of one CTA the list stays in place. rank: of this CTA in the cluster, whose CTAs must all be running.
  __device__ __forceinline__ uint32_t send(const ClusterRow& cluster, int rank) const {
    const int count = static_cast<int>(shared_.num_own), k = shared_.k;
    const bool crowded = count > kSorted || shared_.num_noted > kNoted || shared_.is_held;
    const uint32_t listed = crowded ? kCrowded : static_cast<uint32_t>(min(count, k));
    if (static_cast<int>(threadIdx.x) < cluster.ctas()) cluster.store(threadIdx.x, &shared_.listed[rank], listed);
    // Four threads share the counting of the tokens that precede a candidate.
#pragma unroll 1
    for (int base = 0; !crowded && base < count; base += kSampleThreads / 4) {
      const int i = base + static_cast<int>(threadIdx.x / 4);
      const uint64_t own = i < count ? shared_.own[i] : 0;
      int before = 0;
#pragma unroll 4
      for (int j = threadIdx.x % 4; j < count; j += 4) before += shared_.own[j] > own;
      before += __shfl_xor_sync(0xffffffffu, before, 1);
      before += __shfl_xor_sync(0xffffffffu, before, 2);
      if (threadIdx.x % 4 != 0 || i >= count || before >= k) continue;
      if (size_ == 1) shared_.noted[before] = own;
      else cluster.store(first_, list(rank - first_) + before, own);
    }
    return listed;
  }
  // Merges the lists into their first k, in order, stored in place of the notes. Returns how many there are.
  __device__ __forceinline__ int merge(int k) const {
    int total = 0;
#pragma unroll
    for (int i = 0; i < kMostCtas; ++i) total += count_of(i);
    const int shift = 31 - __clz(size_);
#pragma unroll 1
    for (int i = threadIdx.x; i < k << shift; i += kSampleThreads) {
      const int from = i & (size_ - 1), own = i >> shift;
      if (own >= count_of(from)) continue;
      const uint64_t entry = list(from)[own];
      int place = 0;
#pragma unroll 1
      for (int others = 0; others < size_; others += kAtOnce) place += precede(others, entry, k);
      if (place < k) shared_.noted[place] = entry;
    }
    __syncthreads();
    return min(total, k);
  }

 private:
  static constexpr int kAtOnce = 4;  // concurrent searches per thread: each is a chain of loads

  __device__ __forceinline__ uint64_t* list(int from) const { return lists_ + kListStep * from; }
  __device__ __forceinline__ int count_of(int from) const {
    return from < size_ ? static_cast<int>(shared_.listed[first_ + from]) : 0;
  }
  // Number of entries in kAtOnce lists that precede an entry. k: maximum length of a list.
  __device__ __forceinline__ int precede(int from, uint64_t entry, int k) const {
    int counts[kAtOnce], found[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) counts[j] = count_of(from + j), found[j] = 0;
#pragma unroll 1
    for (int step = 1 << (31 - __clz(k)); step > 0; step /= 2) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if (found[j] + step <= counts[j] && list(from + j)[found[j] + step - 1] > entry) found[j] += step;
    }
    int sum = 0;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) sum += found[j];
    return sum;
  }

  ShortShared& shared_;
  uint64_t* lists_;
  int size_, first_;
};

// Draws from a sorted list of 1 to kShortK candidates, with all filters; the result is in thread 0.
template <class C>
__device__ __forceinline__ uint64_t drawn_of_sorted(ShortShared& shared, uint32_t stream, const uint64_t* list, int count) {
  static_assert(kShortK <= kSampleThreads, "a thread has a candidate");
  const int at = static_cast<int>(threadIdx.x), lane = at % 32, warp = at / 32;
  const uint64_t own = at < count ? list[at] : 0;
  const float a = key_of(own);
  const uint32_t token = token_of(own);
  float noisy = 0.f;  // computed before the kept set is known: both take long
  if (own != 0) noisy = fmaf(a, kLog2E, minus_log2_exponential(Philox(shared.seed, shared.offset, stream).word(token)));
  const Likelihood<C> likelihood = Likelihood<C>::of(key_of(list[0]));
  bool kept = own != 0 && (!C::kMinP || likelihood.distance(a) <= shared.most);
  if (C::kTopP && shared.share < 1.f) {
    const uint64_t mass = own != 0 ? likelihood.mass(a) : 0;
    uint64_t before = mass, total = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint64_t left = __shfl_up_sync(0xffffffffu, before, step);
      if (lane >= step) before += left;
    }
    if (lane == 31) shared.warp[warp] = before;
    __syncthreads();
    before -= mass;
#pragma unroll
    for (int i = 0; i < kShortK / 32; ++i) {
      if (i < warp) before += shared.warp[i];
      total += shared.warp[i];
    }
    kept = kept && before < need_of(shared.share, total);
    __syncthreads();
  }
  const uint64_t best = kept ? ranked(noisy, token) : 0;
  return shared.greedy ? list[0] : ClusterRow::cta_reduce(shared.warp, best, Larger());
}

}  // namespace opfacade
