// Top-k: a list of candidates that includes the first k, or a cut after k and a list of the kept tokens. The first CTA of the
// row sorts the list, so its order does not matter.
#pragma once
#include "kernels/sampling/held.cuh"
#include "kernels/sampling/stream.cuh"

namespace opfacade {

// Followed by the lists of a CTA and of the row, `room` entries each, and the held logits.
struct alignas(16) TopKShared {
  union {
    HeldShared held;
    uint8_t room_of_held[kHeldShared];
  };

  __device__ __forceinline__ CandidateList lists(uint32_t room) {
    uint64_t* const own = reinterpret_cast<uint64_t*>(this + 1);
    return {own, own + room, room, room};
  }
  __device__ __forceinline__ float* logits(uint32_t room) { return reinterpret_cast<float*>(lists(room).all + room); }
};
static_assert(sizeof(TopKShared) == kHeldShared, "as the binding launches it");

template <class C>
class TopK {
 public:
  __device__ __forceinline__ TopK(const SampleParams& p, int64_t row, uint64_t* list) : p_(p), row_(row), list_(list) {}

  // Called by the first CTA of the row.
  __device__ __forceinline__ void write(int count) {
    sort_list(list_, count, p_.top_n);
    for (int i = threadIdx.x; i < p_.top_n; i += kSampleThreads) store(i, list_[i]);
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
  uint64_t* list_;
};

template <class C>
__device__ __forceinline__ void top_k(const SampleParams& p) {
  TopKShared& shared = *reinterpret_cast<TopKShared*>(dynamic_shared());
  const int64_t at = blockIdx.x / p.ctas;
  if (!is_valid_row(p, at)) return;
  const Row<C> row(p, at, shared.held.flags, nullptr);
  const uint32_t room = static_cast<uint32_t>(p.max_top_k);
  const CandidateList list = shared.lists(room);
  HeldRow<C> held(row, shared.held, list, shared.logits(room));
  held.hold([](uint32_t, const float (&)[4]) {});
  const bool writes = blockIdx.x % p.ctas == 0;
  const Target target{false, static_cast<uint64_t>(p.top_n)};
  int count = held.list_of(target, writes);
  if (count == 0) {
    Amount kept{0, 0};
    const Cut cut = held.cut(target, kept);
    count = held.list([&](uint32_t token, float a) { return cut.keeps(ordered(a), token); }, writes);
  }
  if (writes) TopK<C>(p, at, list.all).write(count);
  held.cluster().sync();  // no CTA exits while others read its shared memory
}

}  // namespace opfacade
