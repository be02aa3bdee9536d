// The tokens that may be drawn, whatever prefix of the order is kept: those whose key no more likely token reaches. They are few,
// so a race notes all of them while it streams a row. Steps of octaves have the best key of their tokens; a token far enough below
// a step has to reach that key.
#pragma once
#include "kernels/sampling/cluster_row.cuh"
#include "kernels/sampling/noise.cuh"

namespace opfacade {

constexpr int kFrontSteps = 128, kFrontRoom = 2 * kSampleThreads, kFrontListed = 32, kPlaces = 4;
constexpr float kFrontOctaves = 48.f;  // of all steps at most, below which masses end

// A token: its place in the order, its key, and its logit before the temperature. place 0: none.
struct alignas(16) Noted {
  uint64_t place;
  uint32_t key;  // ordered
  float x;

  __device__ __forceinline__ uint32_t rank() const { return static_cast<uint32_t>(place); }  // of equal keys, the larger one wins
  __device__ __forceinline__ bool wins(const Noted& other) const {
    return key > other.key || (key == other.key && rank() > other.rank());
  }
};

// Places of the order, of which each has a larger key than those before. A place of no token has the logit +inf.
struct Placed {
  uint64_t place[kPlaces];
  uint32_t token[kPlaces];
  float x[kPlaces];
};

// Octaves of the first step, and steps of an octave.
struct FrontScale {
  float top, steepness;

  __device__ __forceinline__ int step_of(float octaves) const {
    return static_cast<int>(fminf(fmaxf((top - octaves) * steepness, 0.f), static_cast<float>(kFrontSteps - 1)));
  }
};

struct FrontShared {
  Noted noted[kFrontRoom];
  Noted listed[kFrontListed];  // what the CTAs of the row read
  uint32_t off, num_listed;
  uint32_t best[kFrontSteps];  // ordered key
  float least[kFrontSteps];    // what a token on the step has to reach
  uint32_t count, highest, lowest;  // ordered octaves; the complement of the lowest
  FrontScale scale;
  Placed placed;
};

class Front {
 public:
  __device__ __forceinline__ explicit Front(FrontShared& shared) : shared_(shared) {}

  // By all threads, which wait for each other then.
  __device__ __forceinline__ void clear() const {
    if (threadIdx.x < kFrontSteps) shared_.least[threadIdx.x] = minus_infinity();
    if (threadIdx.x < kFrontListed) shared_.listed[threadIdx.x].place = 0;
    if (threadIdx.x == 0) {
      shared_.count = shared_.highest = shared_.lowest = shared_.num_listed = 0;
      shared_.off = 0, shared_.scale = {0.f, 0.f};
    }
  }

  // Until `settle`.
  __device__ __forceinline__ FrontScale scale() const { return shared_.scale; }
  // The key that a token with about these octaves has to reach; +inf if it cannot be kept.
  __device__ __forceinline__ float least(const FrontScale& scale, float octaves) const { return shared_.least[scale.step_of(octaves)]; }

  // Notes the token of a lane, if it has one that may be drawn. a: its adjusted logit. By whole warps.
  __device__ __forceinline__ void note(bool is, float a, const Noted& own) const {
    add(is && shared_.off == 0 && !(of_ordered(own.key) < least(scale(), a * kLog2E)), own);
  }

  // Steps by all that is noted, of which tokens stay that may be drawn. By all threads, which have met. reach: octaves below the
  // most likely token within which tokens may be kept.
  __device__ __forceinline__ void settle(float reach) const {
    const uint32_t count = shared_.count;
    if (count > kFrontRoom || shared_.off != 0) return give_up();
    Noted own[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const uint32_t at = threadIdx.x + i * kSampleThreads;
      own[i] = at < count ? shared_.noted[at] : Noted{0, 0, 0.f};
    }
    measure(own);
    if (threadIdx.x < kFrontSteps) shared_.best[threadIdx.x] = 0;
    __syncthreads();
    if (!place_steps()) return give_up();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i)
      if (own[i].place != 0) atomicMax(&shared_.best[scale().step_of(octaves_of(own[i]))], own[i].key);
    if (threadIdx.x == 0) shared_.count = 0;
    __syncthreads();
    if (threadIdx.x < 32) raise(reach);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i)
      add(own[i].place != 0 && !(of_ordered(own[i].key) < least(scale(), octaves_of(own[i]))), own[i]);
    __syncthreads();
  }

  // Lists what may be drawn of the tokens of this CTA, once. By all threads, after `settle`.
  __device__ __forceinline__ void list() const {
    constexpr uint32_t kTogether = 4;
    const uint32_t count = shared_.count, part = threadIdx.x % kTogether;
#pragma unroll 1
    for (uint32_t base = 0; base < count; base += kSampleThreads / kTogether) {
      const uint32_t at = base + threadIdx.x / kTogether;
      const Noted own = at < count ? shared_.noted[at] : Noted{0, 0, 0.f};
      bool lost = own.place == 0;
#pragma unroll 4
      for (uint32_t i = part; i < count; i += kTogether) {
        const Noted other = shared_.noted[i];
        lost |= other.place > own.place ? other.wins(own) : other.place == own.place && i < at;
      }
      const uint32_t by_any = __ballot_sync(0xffffffffu, lost) >> (threadIdx.x % 32 - part) & ((1u << kTogether) - 1);
      if (by_any != 0 || part != 0) continue;
      const uint32_t to = atomicAdd(&shared_.num_listed, 1u);
      if (to < kFrontListed) shared_.listed[to] = own;
      else shared_.off = 1;
    }
  }

  // The lists of all CTAs of the row, which have met. Returns false if a CTA has none. By all threads.
  __device__ __forceinline__ bool gather(const ClusterRow& cluster) const {
    const int own = static_cast<int>(threadIdx.x), rank = own / kFrontListed, at = own % kFrontListed;
    const bool reads = rank < cluster.ctas();
    const bool off = reads && at == 0 && cluster.word_of(rank, &shared_.off) != 0;
    if (reads) {
      const Noted& from = shared_.listed[at];
      shared_.noted[own] = {cluster.words_of(rank, &from.place), cluster.word_of(rank, &from.key), read_float(cluster, rank, &from.x)};
    }
    return !__syncthreads_or(off);
  }
  // The first of the order, in the lists of all CTAs. By whole warps.
  __device__ __forceinline__ uint64_t first(const ClusterRow& cluster) const {
    uint64_t most = 0;
#pragma unroll 1
    for (int i = 0; i < cluster.ctas(); ++i) most = Larger()(most, shared_.noted[i * kFrontListed + threadIdx.x % 32].place);
    return ClusterRow::join(most, Larger());
  }
  // The winners of all lists before `place`, in all of the order if that is 0: each the winner of what precedes the one before.
  // may_be(place): whether a place may be kept. By the first warp.
  template <class F>
  __device__ __forceinline__ void find_places(const ClusterRow& cluster, uint64_t place, F may_be) const {
    Noted own{place, 0, 0.f};
#pragma unroll 1
    for (int i = 0; i < kPlaces; ++i) {
      if (i == 0 || own.place != 0) own = winner_before(own.place, cluster.ctas() * kFrontListed, may_be);
      if (threadIdx.x != 0) continue;
      shared_.placed.place[i] = own.place, shared_.placed.token[i] = own.place == 0 ? 0 : token_of(own.place);
      shared_.placed.x[i] = own.place == 0 ? -minus_infinity() : own.x;
    }
  }
  __device__ __forceinline__ uint64_t place(int at) const { return shared_.placed.place[at]; }
  __device__ __forceinline__ const Placed& placed() const { return shared_.placed; }

 private:
  static constexpr int kPerThread = kFrontRoom / kSampleThreads;
  static constexpr int kApart = 2;  // steps by which the order of two tokens is known: one may be due to rounding of octaves

  static __device__ __forceinline__ float octaves_of(const Noted& own) { return key_of(own.place) * kLog2E; }
  static __device__ __forceinline__ float read_float(const ClusterRow& cluster, int rank, const float* from) {
    return __uint_as_float(cluster.word_of(rank, reinterpret_cast<const uint32_t*>(from)));
  }

  // By whole warps: atomics of many threads on a word follow one another.
  __device__ __forceinline__ void add(bool is, const Noted& own) const {
    const uint32_t lane = threadIdx.x % 32, all = __ballot_sync(0xffffffffu, is);
    if (all == 0) return;
    const int leader = __ffs(static_cast<int>(all)) - 1;
    uint32_t at = 0;
    if (static_cast<int>(lane) == leader) at = atomicAdd(&shared_.count, static_cast<uint32_t>(__popc(all)));
    at = __shfl_sync(0xffffffffu, at, leader) + static_cast<uint32_t>(__popc(all & ((1u << lane) - 1)));
    if (is && at < kFrontRoom) shared_.noted[at] = own;
  }
  // No token is noted any more.
  __device__ __forceinline__ void give_up() const {
    __syncthreads();
    if (threadIdx.x < kFrontSteps) shared_.least[threadIdx.x] = -minus_infinity();
    if (threadIdx.x == 0) shared_.off = 1, shared_.count = 0;
    __syncthreads();
  }

  // The range of octaves of what is noted.
  __device__ __forceinline__ void measure(const Noted (&noted)[kPerThread]) const {
    uint32_t highest = 0, lowest = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (noted[i].place == 0) continue;
      const uint32_t own = ordered(octaves_of(noted[i]));
      highest = max(highest, own), lowest = max(lowest, ~own);
    }
    highest = __reduce_max_sync(0xffffffffu, highest), lowest = __reduce_max_sync(0xffffffffu, lowest);
    if (threadIdx.x % 32 == 0 && highest != 0) atomicMax(&shared_.highest, highest), atomicMax(&shared_.lowest, lowest);
  }
  // The first step is that of the most likely token so far. Returns false if octaves of f32 do not tell tokens apart.
  __device__ __forceinline__ bool place_steps() const {
    if (shared_.highest == 0) return true;
    const float top = of_ordered(shared_.highest), low = fmaxf(of_ordered(~shared_.lowest), top - kFrontOctaves);
    const float step = fmaxf((top - low) * (1.f / (kFrontSteps - 2)), fmaf(fabsf(top), 0x1p-18f, 0x1p-12f));
    if (threadIdx.x == 0) shared_.scale = {top, 1.f / step};
    __syncthreads();
    return fabsf(top) < 0x1p40f;
  }
  // The keys that tokens have to reach, from the best keys of steps. By the first warp.
  __device__ __forceinline__ void raise(float reach) const {
    constexpr int kOwn = kFrontSteps / 32;
    const int lane = static_cast<int>(threadIdx.x);
    uint32_t most = 0, before[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int step = lane * kOwn + i - kApart;
      most = max(most, step >= 0 ? shared_.best[step] : 0), before[i] = most;
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(0xffffffffu, most, step);
      if (lane >= step) most = max(most, left);
    }
    const uint32_t left = __shfl_up_sync(0xffffffffu, most, 1);
    const FrontScale by = scale();
    const float end = (reach + fmaf(2.f * fabsf(by.top) + 256.f, 0x1p-20f, 0x1p-6f)) * by.steepness + static_cast<float>(kApart);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const uint32_t key = max(before[i], lane == 0 ? 0 : left);
      const float reached = key == 0 ? minus_infinity() : of_ordered(key);
      shared_.least[lane * kOwn + i] = static_cast<float>(lane * kOwn + i) > end ? -minus_infinity() : reached;
    }
  }

  // The token with the largest key of those before `place`, or of all, that may be drawn. By a warp.
  template <class F>
  __device__ __forceinline__ Noted winner_before(uint64_t place, int count, F may_be) const {
    Noted best{0, 0, 0.f};
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x % 32); at < count; at += 32) {
      const Noted own = shared_.noted[at];
      if (own.place > place && own.wins(best) && may_be(own.place)) best = own;
    }
    const uint32_t most = __reduce_max_sync(0xffffffffu, best.key);
    if (most == 0) return {0, 0, 0.f};
    const uint32_t rank = __reduce_max_sync(0xffffffffu, best.key == most ? best.rank() : 0);
    const int who = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, best.key == most && best.rank() == rank))) - 1;
    return {__shfl_sync(0xffffffffu, best.place, who), most, __shfl_sync(0xffffffffu, best.x, who)};
  }

  FrontShared& shared_;
};

}  // namespace opfacade
