// Lists the candidates of a row: each CTA of the cluster lists its own. All lists are copied to the CTA that sorts them, which
// then finishes the row without the cluster. The order of a list depends on the schedule until it is sorted.
#pragma once
#include "kernels/sampling/cluster_row.cuh"
#include "kernels/sampling/order.cuh"

namespace opfacade {

struct CandidateList {
  uint64_t *own, *all;  // ranked
  uint32_t own_room, room;

  // Copies the lists of all CTAs to `all` of each CTA with `copies` set. Returns the number of entries, 0 if some list is too
  // short. Called by all threads of the cluster.
  __device__ __forceinline__ int collect(const ClusterRow& cluster, const uint32_t* listed, bool copies) const {
    const uint32_t count = cluster.word_of_lane(listed);
    uint32_t end = count;  // end of the list of this lane's CTA in the list of the row
#pragma unroll
    for (int step = 1; step < kMostCtas; step *= 2) {
      const uint32_t left = __shfl_up_sync(0xffffffffu, end, step);
      if (static_cast<int>(thread() % 32) >= step) end += left;
    }
    const bool fits = __all_sync(0xffffffffu, count <= own_room);
    const uint32_t total = __shfl_sync(0xffffffffu, end, kMostCtas - 1);
    if (!fits || total > room) return 0;
    if (copies) copy(cluster, count, end);
    return static_cast<int>(total);
  }

 private:
  // Each warp copies from one CTA. count, end: values of the CTA whose rank is the lane.
  __device__ __forceinline__ void copy(const ClusterRow& cluster, uint32_t count, uint32_t end) const {
    const int lane = static_cast<int>(thread() % 32), warp = static_cast<int>(thread() / 32), rank = warp % cluster.ctas();
    const uint32_t begin = __shfl_sync(0xffffffffu, end - count, rank), step = kSampleThreads / cluster.ctas();
    count = __shfl_sync(0xffffffffu, count, rank);
    for (uint32_t i = warp / cluster.ctas() * 32 + lane; i < count; i += step) all[begin + i] = cluster.words_of(rank, own + i);
    __syncthreads();
  }
};

// Sorts in descending order, with all threads of a CTA; count is a power of two.
__device__ __forceinline__ void sort_descending(uint64_t* list, int count) {
#pragma unroll 1
  for (int size = 2; size <= count; size *= 2) {
#pragma unroll 1
    for (int step = size / 2; step > 0; step /= 2) {
      for (int i = thread(); i < count / 2; i += kSampleThreads) {
        const int low = 2 * i - (i & (step - 1)), high = low + step;  // step is a power of two
        const uint64_t a = list[low], b = list[high];
        if ((a < b) == ((low & size) == 0)) list[low] = b, list[high] = a;
      }
      __syncthreads();
    }
  }
}

// Sorts a list, padded to at least `least` entries: an entry that is not a candidate is 0, and last. Called by all threads of a
// CTA.
__device__ __forceinline__ void sort_list(uint64_t* list, int count, int least) {
  int padded = 1;
  while (padded < max(least, count)) padded *= 2;
  for (int i = count + thread(); i < padded; i += kSampleThreads) list[i] = 0;
  __syncthreads();
  sort_descending(list, padded);
}

// Masses of the first `count` entries of a sorted list, and their prefix sums. Called by all threads of a CTA.
template <class Held>
class SortedMasses {
 public:
  __device__ __forceinline__ SortedMasses(Held& held, int count) : held_(held), warp_(held.shared().reduce.warp), count_(count) {
    uint64_t sum = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) sum += mass(j);
    before_ = sum;
    const int lane = thread() % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint64_t left = __shfl_up_sync(0xffffffffu, before_, step);
      if (lane >= step) before_ += left;
    }
    if (lane == 31) warp_[thread() / 32] = before_;
    __syncthreads();
    before_ -= sum;
#pragma unroll 1
    for (int i = 0; i < kSampleThreads / 32; ++i) {
      if (i < static_cast<int>(thread()) / 32) before_ += warp_[i];
      total_ += warp_[i];
    }
    __syncthreads();
  }
  __device__ __forceinline__ uint64_t total() const { return total_; }

  // Number of entries until their mass reaches `need`; `count` if it does not.
  __device__ __forceinline__ int reach(uint64_t need) const {
    if (thread() == 0) warp_[0] = count_;
    __syncthreads();
    uint64_t before = before_;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint64_t own = mass(j);
      if (before < need && before + own >= need) warp_[0] = thread() * kEach + j + 1;
      before += own;
    }
    __syncthreads();
    const int found = static_cast<int>(warp_[0]);
    __syncthreads();
    return found;
  }

 private:
  static constexpr int kEach = kListed / kSampleThreads;
  __device__ __forceinline__ uint64_t mass(int j) const {
    const int at = thread() * kEach + j;
    return at < count_ ? held_.mass(key_of(held_.listed().all[at])) : 0;
  }

  Held& held_;
  uint64_t* warp_;
  int count_;
  uint64_t before_, total_ = 0;
};

}  // namespace opfacade
