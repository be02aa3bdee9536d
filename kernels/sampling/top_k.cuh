// Top-k: a cut after k candidates, and a sort of what it keeps. Each CTA lists its own; the first CTA of the row collects the
// lists and sorts them, so the order of a list does not matter.
#pragma once
#include "kernels/sampling/held.cuh"
#include "kernels/sampling/stream.cuh"

namespace opfacade {

struct TopKLists {
  uint64_t own[kMostTopK], all[kMostTopK];
};

// Descending, by all threads of a CTA; count is a power of two.
__device__ __forceinline__ void sort_descending(uint64_t* list, int count) {
#pragma unroll 1
  for (int size = 2; size <= count; size *= 2) {
#pragma unroll 1
    for (int step = size / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < count / 2; i += kSampleThreads) {
        const int low = i / step * step * 2 + i % step, high = low + step;
        const uint64_t a = list[low], b = list[high];
        if ((a < b) == ((low & size) == 0)) list[low] = b, list[high] = a;
      }
      __syncthreads();
    }
  }
}

template <class C>
class TopK {
 public:
  __device__ __forceinline__ TopK(const SampleParams& p, int64_t row, HeldRow<C>& held, uint32_t* counter)
      : p_(p), row_(row), held_(held), counter_(counter),
        lists_(*reinterpret_cast<TopKLists*>(dynamic_shared() + kHeldShared)) {}

  __device__ __forceinline__ void list(const Cut& cut) {
    if (threadIdx.x == 0) *counter_ = 0;
    __syncthreads();
    held_.each([&](uint32_t token, float a) {
      if (cut.keeps(ordered(a), token)) lists_.own[atomicAdd(counter_, 1u)] = ranked(a, token);
    });
    held_.cluster().sync();
  }

  // By the first CTA of the row.
  __device__ __forceinline__ void write() {
    int padded = 1, filled = 0;
    while (padded < p_.top_n) padded *= 2;
#pragma unroll 1
    for (int rank = 0; rank < p_.ctas; ++rank) {
      const int count = static_cast<int>(held_.cluster().word_of(rank, counter_));
      for (int i = threadIdx.x; i < count; i += kSampleThreads) lists_.all[filled + i] = held_.cluster().words_of(rank, &lists_.own[i]);
      filled += count;
    }
    for (int i = filled + threadIdx.x; i < padded; i += kSampleThreads) lists_.all[i] = 0;
    __syncthreads();
    sort_descending(lists_.all, padded);
    for (int i = threadIdx.x; i < p_.top_n; i += kSampleThreads) store(i, lists_.all[i]);
  }

 private:
  using Bits = typename Element<typename C::T>::Bits;
  __device__ __forceinline__ void store(int at, uint64_t found) {
    const Bits* const row = static_cast<const Bits*>(p_.logits) + row_ * p_.logits_row;
    Bits& value = static_cast<Bits*>(p_.values)[row_ * p_.values_row + at];
    value = found == 0 ? Element<typename C::T>::store(minus_infinity()) : row[token_of(found)];
    p_.top_tokens[row_ * p_.top_tokens_row + at] = found == 0 ? -1 : static_cast<int32_t>(token_of(found));
  }

  const SampleParams& p_;
  int64_t row_;
  HeldRow<C>& held_;
  uint32_t* counter_;
  TopKLists& lists_;
};

template <class C>
__device__ __forceinline__ void top_k(const SampleParams& p) {
  HeldShared& shared = *reinterpret_cast<HeldShared*>(dynamic_shared());
  const int64_t at = blockIdx.x / p.ctas;
  if (!is_valid_row(p, at)) return;
  const Row<C> row(p, at, shared.flags);
  HeldRow<C> held(row, shared, reinterpret_cast<float*>(dynamic_shared() + kTopKShared));
  held.hold();
  const Target target{false, static_cast<uint64_t>(p.top_n)};
  held.survey(target);
  Amount kept{0, 0};
  const Cut cut = held.cut(target, kept);
  TopK<C> found(p, at, held, reinterpret_cast<uint32_t*>(shared.flags));
  found.list(cut);
  if (blockIdx.x % p.ctas == 0) found.write();
  held.cluster().sync();  // no CTA exits while others read its shared memory
}

}  // namespace opfacade
