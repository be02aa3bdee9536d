// A pass over candidates sums their count and mass in 256 buckets, most likely first, and finds the bucket in which a target is
// crossed. Counts and masses are integers, so the bits do not depend on the order of additions or the number of CTAs.
#pragma once
#include "kernels/sampling/cluster_row.cuh"
#include "kernels/sampling/order.cuh"

namespace opfacade {

constexpr int kBuckets = 256;

struct Buckets {
  uint32_t count[kBuckets], low[kBuckets], high[kBuckets];
};
struct BucketSums {
  uint32_t count[kBuckets];
  uint64_t mass[kBuckets];
};

struct Amount {
  uint32_t count;
  uint64_t mass;
  __device__ __forceinline__ Amount operator+(const Amount& other) const { return {count + other.count, mass + other.mass}; }
};

// The crossing is the bucket before which the amount is below `need`, and after which it is not.
struct Target {
  bool by_mass;
  uint64_t need;
  __device__ __forceinline__ uint64_t of(const Amount& amount) const { return by_mass ? amount.mass : amount.count; }
};

// Bucket -1: the whole row is below the target.
struct Crossing {
  int bucket;
  Amount before, here;
};

struct SelectShared {
  Buckets buckets[2];  // a peer may still read the buckets of the previous pass
  BucketSums coarse;   // of the row, kept for a second target
  BucketSums sums;
  Amount warp[kBuckets / 32];
  Crossing crossing;
};

class BucketPass {
 public:
  __device__ __forceinline__ explicit BucketPass(SelectShared& shared) : shared_(shared) { clear(0), clear(1); }

  // Called by all threads before the additions of a pass.
  __device__ __forceinline__ void begin() {
    at_ ^= 1;
    __syncthreads();
  }
  // Low words carry into high words, because 32-bit atomics are native.
  __device__ __forceinline__ void add(int bucket, uint64_t mass, uint32_t count = 1) {
    Buckets& to = shared_.buckets[at_];
    atomicAdd(&to.count[bucket], count);
    const uint32_t low = static_cast<uint32_t>(mass);
    uint32_t high = static_cast<uint32_t>(mass >> 32);
    if (low != 0) high += atomicAdd(&to.low[bucket], low) > ~low;
    if (high != 0) atomicAdd(&to.high[bucket], high);
  }
  // Adds the sum over the lanes of a warp; called by all of them.
  __device__ __forceinline__ void add_of_warp(int bucket, Amount amount) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      amount.count += __shfl_xor_sync(0xffffffffu, amount.count, step);
      amount.mass += __shfl_xor_sync(0xffffffffu, amount.mass, step);
    }
    if (thread() % 32 == 0) add(bucket, amount.mass, amount.count);
  }
  // Sums the buckets over the cluster, in every CTA.
  __device__ __forceinline__ void end(const ClusterRow& cluster, BucketSums& sums) {
    cluster.sync();
    const int bucket = thread() % kBuckets, first = thread() / kBuckets;
    const Amount own = summed(cluster, bucket, first);
    if (first == 0) sums.count[bucket] = own.count, sums.mass[bucket] = own.mass;
    clear(at_ ^ 1);  // no CTA reads it any more: it was summed before this pass
    __syncthreads();
    if (kSharers == 1) return;
    if (first != 0) sums.count[bucket] += own.count, sums.mass[bucket] += own.mass;
    __syncthreads();
  }

  __device__ __forceinline__ Crossing crossing(const BucketSums& sums, const Target& target, const Amount& above) {
    if (thread() == 0) shared_.crossing.bucket = -1;
    const int lane = thread() % 32, warp = thread() / 32;
    Amount own{0, 0}, sum{0, 0};
    if (thread() < kBuckets) {
      own = sum = {sums.count[thread()], sums.mass[thread()]};
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const Amount left{__shfl_up_sync(0xffffffffu, sum.count, step), __shfl_up_sync(0xffffffffu, sum.mass, step)};
        if (lane >= step) sum = sum + left;
      }
      if (lane == 31) shared_.warp[warp] = sum;
    }
    __syncthreads();
    if (thread() < kBuckets) {
      Amount before = above;
#pragma unroll 1
      for (int i = 0; i < warp; ++i) before = before + shared_.warp[i];
      before = before + Amount{sum.count - own.count, sum.mass - own.mass};
      if (target.of(before) < target.need && target.of(before + own) >= target.need)
        shared_.crossing = {static_cast<int>(thread()), before, own};
    }
    __syncthreads();
    const Crossing found = shared_.crossing;
    __syncthreads();
    return found;
  }

 private:
  static constexpr int kSharers = kSampleThreads / kBuckets;  // threads per bucket; each adds the buckets of some CTAs
  static_assert(kSharers == 1 || kSharers == 2, "the second one adds to the first");

  // Adds the buckets of every CTA, or of every second one from `first` on.
  __device__ __forceinline__ Amount summed(const ClusterRow& cluster, int bucket, int first) const {
    const Buckets& from = shared_.buckets[at_];
    Amount sum{0, 0};
#pragma unroll 1
    for (int rank = first; rank < cluster.ctas(); rank += kSharers) {
      const uint32_t count = cluster.word_of(rank, &from.count[bucket]);
      const uint32_t low = cluster.word_of(rank, &from.low[bucket]), high = cluster.word_of(rank, &from.high[bucket]);
      sum = sum + Amount{count, (uint64_t{high} << 32) + low};
    }
    return sum;
  }
  __device__ __forceinline__ void clear(int which) {
    uint32_t* const words = shared_.buckets[which].count;
    for (int i = thread(); i < 3 * kBuckets; i += kSampleThreads) words[i] = 0;
  }

  SelectShared& shared_;
  int at_ = 0;
};

}  // namespace opfacade
