// The front: the tokens that may be drawn, whatever prefix of the order is kept. A token is on the front if no more likely
// token has a larger key. There are few of them, so a race notes them all while it streams a row. The range of log2-logits is
// divided into steps; each step stores a lower bound of the best key among more likely tokens, which a token must reach. A
// sample of the row places the steps and gives the first bounds.
#pragma once
#include "kernels/sampling/cluster_row.cuh"
#include "kernels/sampling/noise.cuh"

namespace opfacade {

constexpr int kFrontSteps = 128, kFrontRoom = 512, kFrontListed = 32, kPlaces = 3, kCloseRoom = 512;
constexpr float kFrontOctaves = 48.f;  // maximum range of all steps; tokens further below have mass 0
constexpr uint32_t kNoFront = ~0u;

// A token: its position in the order (as `ranked`), its key, and its logit before the temperature. place 0: none.
struct alignas(16) Noted {
  uint64_t place;
  uint32_t key;  // ordered
  float x;

  __device__ __forceinline__ uint32_t rank() const { return static_cast<uint32_t>(place); }  // of equal keys, the larger one wins
  // One comparison of integers takes no branches.
  __device__ __forceinline__ bool wins(const Noted& other) const {
    return (uint64_t{key} << 32 | rank()) > (uint64_t{other.key} << 32 | other.rank());
  }
};

// Steps of log2-logits (octaves), the most likely tokens first, and the form in which keys are compared: octaves and keys are
// relative to a base, so that a bound is a positive float, which compares like its bits. The rounding error of an octave value
// is smaller than a step.
struct FrontScale {
  float base, top, steepness;  // the base, the step number of the base, and steps per octave
  float lift;                  // a bound is below the key by 32 and the rounding margins

  // Octaves of a logit above the base.
  __device__ __forceinline__ float octaves(float x, float scale) const { return fmaf(x, scale, -base); }
  __device__ __forceinline__ int step_of(float octaves) const {
    return static_cast<int>(fminf(fmaxf(fmaf(-octaves, steepness, top), 0.f), static_cast<float>(kFrontSteps - 1)));
  }
  // The bits of a lower bound of a key.
  __device__ __forceinline__ uint32_t bound(float key) const { return __float_as_uint(fmaxf(key - lift, 0.f)); }
};

struct FrontShared {
  Noted noted[kFrontRoom];                // of this CTA
  Noted listed[kMostCtas][kFrontListed];  // lists of all CTAs of the row, which store them here
  Noted places[kPlaces];                  // of the row, the winner first; unused entries have no token and logit +inf
  uint64_t num_listed[kMostCtas];         // kNoFront: the CTA's list is incomplete
  uint64_t first;                         // first token of the order
  uint32_t count, own_listed, off;
  uint32_t highest, lowest;     // ordered octaves of the sample; the complement of the lowest
  uint32_t best[kFrontSteps];   // bound of the best key in the sample, per step
  uint32_t least[kFrontSteps];  // bound that a token must reach, per step
  uint32_t num_close[2], close[kCloseRoom];  // groups that all warps will examine: of the current list, and of the next one
  uint32_t own_close[kSampleThreads / 32][8];  // groups that a warp examines at once
};

class Front {
 public:
  __device__ __forceinline__ explicit Front(FrontShared& shared) : shared_(shared) {}

  // Called by all threads; a barrier must follow.
  __device__ __forceinline__ void clear() const {
    for (int i = static_cast<int>(threadIdx.x); i < kFrontSteps; i += kSampleThreads) shared_.best[i] = 0;
    if (threadIdx.x != 0) return;
    shared_.count = shared_.own_listed = shared_.off = shared_.highest = shared_.lowest = 0;
    shared_.num_close[0] = shared_.num_close[1] = 0;
  }

  // The range of octaves of the sample. most: 0 in a thread without tokens. Called by whole warps.
  __device__ __forceinline__ void measure(uint32_t most, uint32_t complement_of_least) const {
    most = __reduce_max_sync(0xffffffffu, most), complement_of_least = __reduce_max_sync(0xffffffffu, complement_of_least);
    if (threadIdx.x % 32 != 0 || most == 0) return;
    atomicMax(&shared_.highest, most), atomicMax(&shared_.lowest, complement_of_least);
  }
  // Places the steps over this range, and some above it. Nothing is noted if f32 octaves cannot distinguish tokens. usual:
  // whether the scale of logits is in the normal range. Called by all threads after a barrier.
  __device__ __forceinline__ FrontScale place_steps(bool usual) const {
    const bool any = shared_.highest != 0;
    const float most = any ? of_ordered(shared_.highest) : 0.f, low = fmaxf(any ? of_ordered(~shared_.lowest) : 0.f, most - kFrontOctaves);
    if (!(usual && fabsf(most) < 0x1p24f) && threadIdx.x == 0) shared_.off = 1;
    if (!any) return {minus_infinity(), 0.f, 0.f, 32.f};
    const float step = fmaxf((most - low) * (1.f / (kFrontSteps - kAbove - 2)), fmaf(fabsf(most), 0x1p-18f, 0x1p-12f));
    const float base = low - kBelow, steepness = 1.f / step;
    return {base, fmaf(most - base, steepness, static_cast<float>(kAbove)), steepness, fmaf(fabsf(most), 0x1p-19f, 32.f + 0x1p-5f)};
  }
  // Records a sampled token; its key is at least `key`.
  __device__ __forceinline__ void sample(const FrontScale& scale, float octaves, float key) const {
    atomicMax(&shared_.best[scale.step_of(octaves)], scale.bound(key));
  }
  // Computes the bounds of the steps from the sample. reach: octaves below the most likely token within which tokens may be
  // kept. Called by the first warp after all sample() calls.
  __device__ __forceinline__ void raise(const FrontScale& scale, float reach) const {
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
    float end = -minus_infinity();
    if (shared_.highest != 0) end = end_of(scale, of_ordered(shared_.highest) - scale.base, reach);
    if (shared_.off != 0) end = minus_infinity();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool may = !(static_cast<float>(lane * kOwn + i) > end);
      shared_.least[lane * kOwn + i] = may ? max(before[i], lane == 0 ? 0 : left) : kNever;
    }
  }

  // log2 of the largest random word with which a token may reach its bound; the exponential E is at least u. Any word will do
  // if this exceeds 32.
  __device__ __forceinline__ float leeway(const FrontScale& scale, float octaves) const {
    return octaves - __uint_as_float(static_cast<const volatile uint32_t*>(shared_.least)[scale.step_of(octaves)]);  // others may raise it
  }

  // Notes the token of each lane with `is`, and raises the bounds of less likely tokens. key: relative to the base. Called by
  // whole warps.
  __device__ __forceinline__ void note(bool is, const FrontScale& scale, float octaves, float key, const Noted& own, float reach) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (is) {
      const uint32_t at = atomicAdd(&shared_.count, 1u);
      if (at < kFrontRoom) shared_.noted[at] = own;
    }
#pragma unroll 1
    for (uint32_t all = __ballot_sync(0xffffffffu, is); all != 0; all &= all - 1) {
      const int who = __ffs(static_cast<int>(all)) - 1;
      const uint32_t bound = scale.bound(__shfl_sync(0xffffffffu, key, who));
      const float from = __shfl_sync(0xffffffffu, octaves, who), end = end_of(scale, from, reach);
      const int first = scale.step_of(from) + kApart;
#pragma unroll
      for (int i = lane; i < kFrontSteps; i += 32) {
        const bool ends = static_cast<float>(i) > end;
        if (i >= first || ends) atomicMax(&shared_.least[i], ends ? kNever : bound);
      }
    }
  }

  // Lists the front of this CTA's tokens in all CTAs of the row, which must be running. rank: the rank of this CTA. Called by
  // all threads after a barrier; the lists are complete after the next cluster barrier.
  __device__ __forceinline__ void list(const ClusterRow& cluster, int rank) const {
    const bool off = shared_.off != 0 || shared_.count > kFrontRoom;
    const uint32_t count = off ? 0 : shared_.count;
    each_entry(count, [&](const Noted& own, uint32_t part) {
      bool lost = own.place == 0;
#pragma unroll 4
      for (uint32_t i = part; i < count; i += kTogether) {
        const Noted other = shared_.noted[i];
        lost |= (other.place > own.place) & other.wins(own);
      }
      if (any_together(lost) || part != 0) return;
      const uint32_t to = atomicAdd(&shared_.own_listed, 1u);
      if (to >= kFrontListed) return;
      Noted* const slot = &shared_.listed[rank][to];
#pragma unroll 1
      for (int i = 0; i < cluster.ctas(); ++i) {
        cluster.store(i, &slot->place, own.place);
        cluster.store(i, reinterpret_cast<uint64_t*>(slot) + 1, uint64_t{__float_as_uint(own.x)} << 32 | own.key);
      }
    });
    __syncthreads();
    if (static_cast<int>(threadIdx.x) >= cluster.ctas()) return;
    const uint32_t listed = shared_.own_listed;
    cluster.store(static_cast<int>(threadIdx.x), &shared_.num_listed[rank], off || listed > kFrontListed ? kNoFront : listed);
  }

  // Whether the lists of all CTAs are complete. Called by whole warps.
  __device__ __forceinline__ bool is_whole(const ClusterRow& cluster) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return __all_sync(0xffffffffu, lane >= cluster.ctas() || shared_.num_listed[lane] != kNoFront);
  }
  // Finds the first token of the order in the complete lists. Called by the first warp.
  __device__ __forceinline__ uint64_t find_first(const ClusterRow& cluster) const {
    uint64_t most = 0;
    each_listed(cluster, [&](const Noted& own) { most = own.place > most ? own.place : most; });
    most = ClusterRow::join(most, Larger());
    if (threadIdx.x == 0) shared_.first = most;
    return most;
  }
  __device__ __forceinline__ uint64_t first() const { return shared_.first; }
  // Finds the next kPlaces entries of the front of the row among tokens with may_be(place): each entry is the winner among the
  // tokens that precede the entry before it. before: the last entry of the previous call, or 0. Called by the first warp.
  template <class F>
  __device__ __forceinline__ void find_places(const ClusterRow& cluster, uint64_t before, F may_be) const {
#pragma unroll 1
    for (int i = 0; i < kPlaces; ++i) {
      Noted best{0, 0, -minus_infinity()};
      each_listed(cluster, [&](const Noted& own) {
        if ((own.place > before) & own.wins(best) && may_be(own.place)) best = own;
      });
      const uint32_t key = __reduce_max_sync(0xffffffffu, best.key);
      const uint32_t rank = __reduce_max_sync(0xffffffffu, best.key == key ? best.rank() : 0);
      const bool is = best.key == key && best.rank() == rank;
      const int who = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, is))) - 1;
      if (static_cast<int>(threadIdx.x) == who) shared_.places[i] = best;
      before = __shfl_sync(0xffffffffu, best.place, who);
      if (before == 0) before = ~uint64_t{0};  // no entry is left
    }
  }
  // The entries of the last call of find_places.
  __device__ __forceinline__ const Noted* places() const { return shared_.places; }
  // Buffer in which this warp lists groups.
  __device__ __forceinline__ uint32_t* own_close() const { return shared_.own_close[threadIdx.x / 32]; }
  // Groups that all warps will examine, and their number, which may exceed kCloseRoom.
  __device__ __forceinline__ uint32_t* close() const { return shared_.close; }
  __device__ __forceinline__ uint32_t& num_close(uint32_t slot) const { return shared_.num_close[slot]; }

 private:
  static constexpr int kApart = 2;   // distance in steps from which the order of two tokens is certain
  static constexpr uint32_t kTogether = 4;  // threads per entry
  static constexpr int kLists = 4;  // lists whose loads are in flight together
  static constexpr int kAbove = 16;  // steps above the most likely token of the sample
  static constexpr float kBelow = 256.f;  // octaves from the base to the least likely token of the steps
  static constexpr uint32_t kNever = 0x7f800000u;  // no token reaches it

  // The last step that can contain kept tokens, given a token with `octaves`; step 0 contains all more likely tokens.
  static __device__ __forceinline__ float end_of(const FrontScale& scale, float octaves, float reach) {
    const float far = reach + fmaf(2.f * (fabsf(octaves) + fabsf(scale.base)) + 256.f, 0x1p-20f, 0x1p-6f);
    return fmaxf(fmaf(far - octaves, scale.steepness, scale.top) + static_cast<float>(kApart), 0.f);
  }

  // Calls f(entry, part) for each of `total` noted entries: kTogether threads share an entry. Called by whole warps.
  template <class F>
  __device__ __forceinline__ void each_entry(uint32_t total, F f) const {
#pragma unroll 1
    for (uint32_t base = 0; base < total; base += kSampleThreads / kTogether) {
      const uint32_t at = base + threadIdx.x / kTogether;
      f(at < total ? shared_.noted[at] : Noted{0, 0, 0.f}, threadIdx.x % kTogether);
    }
  }
  // Calls f(entry) for the listed entries of this lane, and for empty ones.
  template <class F>
  __device__ __forceinline__ void each_listed(const ClusterRow& cluster, F f) const {
    static_assert(kFrontListed == 32, "each lane has an entry of each list");
#pragma unroll 1
    for (int from = 0; from < cluster.ctas(); from += kLists) {
      Noted own[kLists];
#pragma unroll
      for (int i = 0; i < kLists; ++i) {
        own[i] = shared_.listed[from + i][threadIdx.x];
        if (from + i >= cluster.ctas() || threadIdx.x >= shared_.num_listed[from + i]) own[i].place = own[i].key = 0;
      }
#pragma unroll
      for (int i = 0; i < kLists; ++i) f(own[i]);
    }
  }
  static __device__ __forceinline__ bool any_together(bool is) {
    const uint32_t lane = threadIdx.x % 32;
    return (__ballot_sync(0xffffffffu, is) >> lane / kTogether * kTogether & ((1u << kTogether) - 1)) != 0;
  }

  FrontShared& shared_;
};

}  // namespace opfacade
