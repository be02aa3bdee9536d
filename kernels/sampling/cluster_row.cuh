// Values of a row that the CTAs of its cluster reduce together. Every operation is on integers, so the order does not matter.
#pragma once
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/cluster_store.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ptx.cuh"
#include "kernels/sampling/sample_params.h"

namespace opfacade {

// The maximum of each half of a word.
struct Larger {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};
struct LargerHalves {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const {
    const uint32_t high = max(static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b >> 32));
    return uint64_t{high} << 32 | max(static_cast<uint32_t>(a), static_cast<uint32_t>(b));
  }
};
struct Sum {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

struct ReduceShared {
  uint64_t warp[kSampleThreads / 32], cta[2];
};

class ClusterRow {
 public:
  __device__ __forceinline__ ClusterRow(ReduceShared& shared, int ctas) : shared_(shared), ctas_(ctas) {}

  __device__ __forceinline__ int ctas() const { return ctas_; }
  __device__ __forceinline__ void sync() const {
    if (ctas_ == 1) return __syncthreads();
    cluster_sync();
  }
  // A split barrier. All CTAs are running once they have met at `arrive`; stores before `publish` are visible after the
  // matching `wait`.
  __device__ __forceinline__ void arrive() const {
    if (ctas_ > 1) cluster_arrive();
  }
  __device__ __forceinline__ void publish() const {
    if (ctas_ > 1) cluster_publish();
  }
  __device__ __forceinline__ void wait() const {
    if (ctas_ == 1) return __syncthreads();
    cluster_wait();
  }
  // Stores to `own` in the CTA `rank`, which must be running.
  __device__ __forceinline__ void store(int rank, uint64_t* own, uint64_t value) const {
    if (ctas_ == 1) *own = value;
    else cluster_store_two_words(cluster_address(smem_address(own), rank), value);
  }
  __device__ __forceinline__ uint32_t word_of(int rank, const uint32_t* own) const {
    return ctas_ == 1 ? *own : cluster_load_word(cluster_address(smem_address(own), rank));
  }
  __device__ __forceinline__ uint64_t words_of(int rank, const uint64_t* own) const {
    return ctas_ == 1 ? *own : cluster_load_two_words(cluster_address(smem_address(own), rank));
  }

  // Reads the word of the CTA whose rank is this lane, so that all words are read in parallel; 0 beyond the last CTA.
  __device__ __forceinline__ uint32_t word_of_lane(const uint32_t* own) const {
    const int rank = static_cast<int>(thread() % 32);
    return rank < ctas_ ? word_of(rank, own) : 0;
  }
  __device__ __forceinline__ uint64_t words_of_lane(const uint64_t* own) const {
    const int rank = static_cast<int>(thread() % 32);
    return rank < ctas_ ? words_of(rank, own) : 0;
  }

  // Reduces `value` over all threads of the row and returns the result in every thread; 0 is neutral. There are two slots,
  // because a peer may still read the other one.
  template <class Op>
  __device__ __forceinline__ uint64_t reduce(uint64_t value, Op op) {
    value = join(value, op);
    if (thread() % 32 == 0) shared_.warp[thread() / 32] = value;
    __syncthreads();
    slot_ ^= 1;
    if (thread() < 32) {
      value = shared_.warp[thread() % (kSampleThreads / 32)];
#pragma unroll
      for (int step = kSampleThreads / 64; step > 0; step /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
      if (thread() == 0) shared_.cta[slot_] = value;
    }
    sync();
    return join(words_of_lane(&shared_.cta[slot_]), op);
  }
  // The same for one CTA; the result is in its first warp. warps: one word per warp.
  template <class Op>
  static __device__ __forceinline__ uint64_t cta_reduce(uint64_t* warps, uint64_t value, Op op) {
    value = join(value, op);
    if (thread() % 32 == 0) warps[thread() / 32] = value;
    __syncthreads();
    return thread() < 32 ? join(warps[thread() % (kSampleThreads / 32)], op) : 0;
  }

  // Reduces over the lanes of a warp.
  template <class Op>
  static __device__ __forceinline__ uint64_t join(uint64_t value, Op op) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
  }

 private:
  ReduceShared& shared_;
  int ctas_, slot_ = 0;
};

}  // namespace opfacade
