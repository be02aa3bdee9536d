// The first k of a row for a short k: a team of CTAs of its cluster streams it, and nothing is held. Each thread knows its largest
// token so far, and k of those bound what may be among the first k: few candidates are noted, fewer are sorted, and sorted lists
// of the team are merged.
#pragma once
#include "kernels/sampling/chunk.cuh"
#include "kernels/sampling/kept.cuh"

namespace opfacade {

constexpr int kWarps = kSampleThreads / 32;
constexpr uint32_t kCrowded = ~0u;

struct ShortShared {
  uint64_t noted[kNoted];  // bits of a token before its temperature, and its id; then lists
  uint64_t own[kSorted];   // ranked, in no order
  uint64_t warp[kWarps];
  float sample[2][32];
  uint32_t counts[kMostCtas];
  uint32_t num_noted, num_own;
  uint32_t listed;  // entries of this CTA's list, kCrowded if there is no room
  // Facts of the row for its end; k is 0 if no short list draws it.
  int64_t seed, offset;
  float share, most;
  int32_t k, greedy;
};
static_assert(sizeof(ShortShared) <= 8 * (kOwnListed + kListed), "in place of other lists");
static_assert(kShortK * (kMostCtas + 2) <= kNoted, "lists in place of notes");

// Over the lanes of a warp, the largest first.
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

// One CTA's part of the row, and the candidates that it finds there.
template <class C>
class Shortlist {
 public:
  // k: 1 to kShortK.
  __device__ __forceinline__ Shortlist(const Row<C>& row, ShortShared& shared, int k) : row_(row), shared_(shared), k_(k) {}

  // Lists the first k of the tokens from `first` to `end`, in order.
  __device__ __forceinline__ void find(uint32_t first, uint32_t end) {
    stream(first, end);
    __syncthreads();
    refine();
    sort();
  }

 private:
  static constexpr uint32_t kStep = kGroupStep;
  static constexpr int kAhead = kGroupsAhead<C>;

  __device__ __forceinline__ void stream(uint32_t first, uint32_t end) {
    const uint32_t stop = row_.whole(first, end);
    uint32_t chunks = 0;
#pragma unroll 1
    for (uint32_t base = first; base < end;) {
      float a[kAhead][4];
      const auto change = [&](uint32_t token, Loaded<4>& group) { row_.change(token, group); };
      const uint32_t from = base + 4 * threadIdx.x;
      if (base < stop) {
        read_wide<C>(row_, from, stop, a, change);
        base = min(stop, base + kAhead * kStep);
      } else {
        read_narrow<C>(row_, from, end, a, change);
        base += kStep;
      }
      float most = minus_infinity();
#pragma unroll
      for (int i = 0; i < kAhead; ++i) most = fmaxf(most, largest(a[i]));
      most_ = fmaxf(most_, most);
      ++chunks;
      // The bound of a half is twice as far as that of all, which the last chunk has.
      if ((chunks & (chunks - 1)) == 0 || base >= end) bound();
      if (most >= least_) note(from, a);
    }
  }

  static __device__ __forceinline__ float largest(const float (&a)[4]) { return fmaxf(fmaxf(a[0], a[1]), fmaxf(a[2], a[3])); }

  // Few chunks of a thread have a token that may be among the first k.
  __device__ __forceinline__ void note(uint32_t from, const float (&a)[kAhead][4]) {
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < 4 * kAhead; ++i) count += a[i / 4][i % 4] >= least_;
    uint32_t at = atomicAdd(&shared_.num_noted, count);
#pragma unroll
    for (int i = 0; i < 4 * kAhead; ++i) {
      const float x = a[i / 4][i % 4];
      if (!(x >= least_)) continue;
      if (at < kNoted) shared_.noted[at] = uint64_t{__float_as_uint(x)} << 32 | (from + kStep * (i / 4) + i % 4);
      ++at;
    }
  }

  // By all threads: a token below the bound is behind k others. Each warp gives its tokens number s and 2 s: where the k / s th
  // of all of them bounds, each that is as large has s tokens of its warp that are.
  __device__ __forceinline__ void bound() {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int each = (k_ + kWarps - 1) / kWarps;
    float value = sorted_lanes(most_);
    slot_ ^= 1;  // a warp may still read the samples before
    if (lane == each - 1) shared_.sample[slot_][warp] = value;
    if (lane == 2 * each - 1) shared_.sample[slot_][kWarps + warp] = value;
    __syncthreads();
    value = sorted_lanes(shared_.sample[slot_][lane]);
    least_ = least_with(__shfl_sync(0xffffffffu, value, (k_ + each - 1) / each - 1));
  }

  // A number that each token reaches which may equal x when both are adjusted; above -inf.
  __device__ __forceinline__ float least_with(float x) const {
    const float heat = !C::kTemperature || row_.greedy() ? 1.f : row_.temperature;
    const float least = x - fmaf(fabsf(x), 0x1p-20f, heat * 0x1p-148f), edge = fminf(heat, 1.f) * 0x1.ffp126f;
    const bool all = !(least > -edge);  // tokens far below have one value, and those far above
    return all ? -0x1.fffffep127f : fminf(least, edge);
  }

  // Drops tokens that were noted before the last bound was known, and ranks the others.
  __device__ __forceinline__ void refine() {
    const int noted = min(static_cast<int>(shared_.num_noted), kNoted);
#pragma unroll 1
    for (int i = threadIdx.x; i < noted; i += kSampleThreads) {
      const float x = __uint_as_float(static_cast<uint32_t>(shared_.noted[i] >> 32));
      if (!(x >= least_)) continue;
      const uint32_t at = atomicAdd(&shared_.num_own, 1u);
      if (at < kSorted) shared_.own[at] = ranked(row_.settled(x), static_cast<uint32_t>(shared_.noted[i]));
    }
    __syncthreads();
  }

  // Four threads count what precedes a candidate.
  __device__ __forceinline__ void sort() {
    const int count = static_cast<int>(shared_.num_own);
    const bool crowded = count > kSorted || shared_.num_noted > kNoted;
    if (threadIdx.x == 0) shared_.listed = crowded ? kCrowded : static_cast<uint32_t>(min(count, k_));
    if (crowded) return;
#pragma unroll 1
    for (int base = 0; base < count; base += kSampleThreads / 4) {
      const int i = base + static_cast<int>(threadIdx.x / 4);
      const uint64_t own = i < count ? shared_.own[i] : 0;
      int before = 0;
#pragma unroll 4
      for (int j = threadIdx.x % 4; j < count; j += 4) before += shared_.own[j] > own;
      before += __shfl_xor_sync(0xffffffffu, before, 1);
      before += __shfl_xor_sync(0xffffffffu, before, 2);
      if (threadIdx.x % 4 == 0 && i < count && before < k_) shared_.noted[before] = own;
    }
  }

  const Row<C>& row_;
  ShortShared& shared_;
  int k_, slot_ = 0;
  float most_ = minus_infinity(), least_ = 0.f;
};

// Lists of a team, brought to its first CTA: behind that of its own, and then their first k.
class TeamLists {
 public:
  __device__ __forceinline__ TeamLists(ShortShared& shared, int team) : shared_(shared), team_(team) {}

  // counts: in the lane with the number of its CTA in the cluster. first: the number of this one.
  __device__ __forceinline__ void copy(const ClusterRow& cluster, uint32_t count, int first) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    if (warp == 0 && lane >= first && lane < first + team_) shared_.counts[lane - first] = count;
    const int from = warp % team_;
    count = __shfl_sync(0xffffffffu, count, first + from);
    for (uint32_t i = warp / team_ * 32 + lane; i < count; i += kSampleThreads / team_)
      list(from)[i] = cluster.words_of(first + from, shared_.noted + i);
  }
  // The first k of all lists, in order; how many there are.
  __device__ __forceinline__ int merge(int k) {
    uint64_t* const to = merged();
    int total = 0;
    for (int i = 0; i < team_; ++i) total += static_cast<int>(shared_.counts[i]);
#pragma unroll 1
    for (int i = threadIdx.x; i < team_ * kShortK; i += kSampleThreads) {
      const int from = i / kShortK, own = i % kShortK;
      if (own >= static_cast<int>(shared_.counts[from])) continue;
      const uint64_t entry = list(from)[own];
      int place = own;
#pragma unroll 1
      for (int other = 0; other < team_; ++other)
        if (other != from) place += precede(other, entry);
      if (place < k) to[place] = entry;
    }
    __syncthreads();
    return min(total, k);
  }
  __device__ __forceinline__ uint64_t* merged() const { return shared_.noted + kShortK * (kMostCtas + 1); }

 private:
  __device__ __forceinline__ uint64_t* list(int from) const { return shared_.noted + kShortK * (from + 1); }
  // How many of a list precede an entry of another one.
  __device__ __forceinline__ int precede(int from, uint64_t entry) const {
    const int count = static_cast<int>(shared_.counts[from]);
    int found = 0;
#pragma unroll
    for (int step = kShortK; step > 0; step /= 2)
      if (found + step <= count && list(from)[found + step - 1] > entry) found += step;
    return found;
  }

  ShortShared& shared_;
  int team_;
};

// The draw from a sorted list of 1 to kShortK candidates, to which all filters apply; in thread 0.
template <class C>
__device__ __forceinline__ uint64_t drawn_of_sorted(ShortShared& shared, uint32_t stream, const uint64_t* list, int count) {
  static_assert(kShortK <= kSampleThreads, "a thread has a candidate");
  const int at = static_cast<int>(threadIdx.x), lane = at % 32, warp = at / 32;
  const uint64_t own = at < count ? list[at] : 0;
  const float a = key_of(own);
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
  const uint32_t token = token_of(own);
  uint64_t best = 0;
  if (kept) {
    const uint32_t word = Philox(shared.seed, shared.offset, stream).word(token);
    best = ranked(fmaf(a, kLog2E, minus_log2_exponential(word)), token);
  }
  return shared.greedy ? list[0] : ClusterRow::cta_reduce(shared.warp, best, Larger());
}

}  // namespace opfacade
