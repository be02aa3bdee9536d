// The tokens before a winner on a ladder, of which each step is a range of octaves: how many tokens it has, and their best key.
// Counts bound the mass before a step, so that steps are known to be kept or lost, and one pass finds what is drawn: it is the
// winner of the steps that are not lost, unless that is on one of the few whose mass is not known well enough.
#pragma once
#include "kernels/sampling/joint.cuh"
#include "kernels/sampling/noise.cuh"

namespace opfacade {

constexpr int kSteps = kSampleThreads, kFlight = 32, kFlights = kSteps / kFlight;  // a thread has a step, and a warp a flight

struct LadderShared {
  uint64_t best[kSteps];     // ranked by key
  uint32_t count[kSteps];
  float mass[kSteps];        // up to the end of a step, at most
  uint32_t above[kFlights];  // ordered: the best key of the flights before
  float warp[kFlights];
  float steepness;           // steps of an octave
  uint32_t unsure;  // tokens of which sums in f32 do not know whether they precede the winner
};

class Ladder {
 public:
  __device__ __forceinline__ explicit Ladder(LadderShared& shared) : shared_(shared) {}

  // Octaves of all steps, at least 2 kSteps times what the order of two tokens and that of their octaves differ by. 0: the first
  // step has all tokens. By all threads, which wait for each other then.
  __device__ __forceinline__ void span(float octaves) const {
    if (threadIdx.x == 0) shared_.steepness = octaves > 0.f ? static_cast<float>(kSteps) / octaves : 0.f;
  }
  // By all threads, which wait for each other before anything is added.
  static __device__ __forceinline__ void clear(LadderShared& shared) {
    shared.best[threadIdx.x] = 0, shared.count[threadIdx.x] = 0;
    if (threadIdx.x < kFlights) shared.above[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared.unsure = 0;
  }

  __device__ __forceinline__ bool is_one() const { return shared_.steepness == 0.f; }
  __device__ __forceinline__ int step_of(float octaves) const {
    return max(0, min(kSteps - 1, static_cast<int>(-octaves * shared_.steepness)));
  }
  __device__ __forceinline__ void count(float octaves) const { atomicAdd(&shared_.count[step_of(octaves)], 1u); }
  __device__ __forceinline__ void count_unsure() const { atomicAdd(&shared_.unsure, 1u); }

  // The best key so far of tokens that are more likely, and of those on the same step.
  __device__ __forceinline__ float best(float octaves) const {
    const int step = step_of(octaves);
    const uint64_t own = static_cast<const volatile uint64_t&>(shared_.best[step]);
    const uint32_t above = static_cast<const volatile uint32_t&>(shared_.above[step / kFlight]);
    const uint32_t most = max(static_cast<uint32_t>(own >> 32), above);
    return most == 0 ? minus_infinity() : of_ordered(most);
  }
  __device__ __forceinline__ void tell(float octaves, uint64_t own) const {
    const int step = step_of(octaves);
    if (own <= static_cast<const volatile uint64_t&>(shared_.best[step])) return;
    atomicMax(reinterpret_cast<unsigned long long*>(&shared_.best[step]), static_cast<unsigned long long>(own));
    const uint32_t key = static_cast<uint32_t>(own >> 32);
#pragma unroll 1
    for (int i = step / kFlight + 1; i < kFlights && static_cast<const volatile uint32_t&>(shared_.above[i]) < key; ++i)
      atomicMax(&shared_.above[i], key);
  }

  // By all threads of a row, whose CTAs have met since tokens were told. least, most: between them is the mass before which tokens
  // are kept. Returns the winner of the steps that may be kept. all: whether it is on one that is kept.
  __device__ __forceinline__ uint64_t winner(const ClusterRow& cluster, Joint& joint, float least, float most, bool& all) const {
    add_up(cluster);
    const int own = static_cast<int>(threadIdx.x);
    const float width = is_one() ? 0.f : 1.f / shared_.steepness;
    // The next step may have tokens that precede some of this one, and so may the last one behind it.
    const bool kept = shared_.mass[min(own + 1, kSteps - 1)] < least;
    const bool lost = own >= 2 && exp2_approx(-width) * shared_.mass[max(own - 2, 0)] > most;
    const uint64_t best = shared_.best[own];
    Joint::Values found = {lost ? 0 : best, kept ? best : 0};
    joint.reduce(found, Larger());
    all = found[0] == found[1];
    return found[0];
  }

 private:
  // Masses up to the end of each step, as all CTAs of the row have them.
  __device__ __forceinline__ void add_up(const ClusterRow& cluster) const {
    const int own = static_cast<int>(threadIdx.x), lane = own % 32, warp = own / 32;
    uint32_t count = 0;
#pragma unroll 1
    for (int rank = 0; rank < cluster.ctas(); ++rank) count += cluster.word_of(rank, &shared_.count[own]);
    const float most = is_one() ? 1.f : exp2_approx(static_cast<float>(own) / -shared_.steepness);
    float sum = static_cast<float>(count) * most;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float left = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += left;
    }
    if (lane == 31) shared_.warp[warp] = sum;
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < warp; ++i) sum += shared_.warp[i];
    shared_.mass[own] = sum;
    __syncthreads();
  }

  LadderShared& shared_;
};

}  // namespace opfacade
