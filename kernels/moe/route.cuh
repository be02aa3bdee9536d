// Selects the experts of each row and their weights. One warp processes one row: lane i has every 32nd logit, so the row is
// read once, and a round of shuffles finds each expert in turn. Keys are compared as integers together with the id: equal keys
// rank by the lower id, and NaN ranks last. Ids are therefore distinct and in range for any logits. Sums are f32 in a fixed
// order. The time to read the logits bounds the time of the kernel.
#pragma once
#include "kernels/common/operations.cuh"
#include "kernels/common/softmax.cuh"
#include "kernels/moe/route_params.h"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/dtype.cuh"

namespace opfacade {

// Order-preserving integer of a float; NaN is below all numbers, and 0 is reserved for experts that may not be chosen.
__device__ __forceinline__ uint32_t rank_of(float x) {
  if (x != x) return 1;
  const uint32_t bits = __float_as_uint(x + 0.f);  // -0 equals 0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// A rank and its index, as one integer; among equal ranks, the lowest index has the greatest entry.
__device__ __forceinline__ uint64_t entry_of(uint32_t rank, int index) { return uint64_t{rank} << 32 | ~static_cast<uint32_t>(index); }
__device__ __forceinline__ int index_of(uint64_t entry) { return static_cast<int>(~static_cast<uint32_t>(entry)); }

template <class T, class Op>
__device__ __forceinline__ T over_warp(T value, Op op) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}
__device__ __forceinline__ float sum_of_warp(float value) {
  return over_warp(value, [](float a, float b) { return add_rounded(a, b); });
}
__device__ __forceinline__ float most_of_warp(float value) {
  return over_warp(value, [](float a, float b) { return fmaxf(a, b); });
}
__device__ __forceinline__ uint64_t best_of_warp(uint64_t entry) {
  return over_warp(entry, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}

// A logit plus its bias, which is the same f32 on every machine.
template <class C>
__device__ __forceinline__ float logit_of(const RouteParams& p, int64_t row, int expert) {
  using Bits = typename Element<typename C::T>::Bits;
  const float logit = Element<typename C::T>::load(static_cast<const Bits*>(p.logits)[row * p.logits_row + expert]);
  return C::kBias ? add_rounded(logit, p.bias[expert]) : logit;
}

template <class C>
struct RouterRow {
  static constexpr int kOwn = (C::kExperts + 31) / 32, kSize = C::kExperts / C::kGroups;
  float z[kOwn];  // logit of expert lane + 32 * i
  float most, total;  // maximum and sum of a softmax over all experts

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int expert(int i) { return lane() + 32 * i; }

  __device__ __forceinline__ void load(const RouteParams& p, int64_t row) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) z[i] = expert(i) < C::kExperts ? logit_of<C>(p, row, expert(i)) : minus_infinity();
    if constexpr (C::kScore == Score::kSoftmax) normalise();
  }
  __device__ __forceinline__ void normalise() {
    most = z[0];
#pragma unroll
    for (int i = 1; i < kOwn; ++i) most = fmaxf(most, z[i]);
    most = most_of_warp(most);
    total = 0.f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (expert(i) < C::kExperts) total = add_rounded(total, ops::exp_(sub_rounded(z[i], most)));
    total = sum_of_warp(total);
  }
  // Not used with softmax_chosen, which needs all chosen logits.
  __device__ __forceinline__ float score(float x) const {
    if constexpr (C::kScore == Score::kSoftmax) return div_rounded(ops::exp_(sub_rounded(x, most)), total);
    if constexpr (C::kScore == Score::kSigmoid) return div_rounded(1.f, add_rounded(1.f, ops::exp_(-x)));
    return sqrt_rounded(add_rounded(x > 0.f ? x : 0.f, ops::log1p_(ops::exp_(-fabsf(x)))));
  }
  __device__ __forceinline__ float key(const RouteParams& p, int i) const {
    if constexpr (C::kByLogits) return z[i];
    const float found = score(z[i]);
    return C::kCorrection && expert(i) < C::kExperts ? add_rounded(found, p.correction[expert(i)]) : found;
  }
};

// The key of a group from the row's keys in shared memory: its largest key, or the sum of its two largest keys.
template <class C>
__device__ __forceinline__ float group_key(const float* keys) {
  uint64_t best = 0, second = 0;
  for (int i = 0; i < RouterRow<C>::kSize; ++i) {
    const uint64_t entry = entry_of(rank_of(keys[i]), i);
    second = max(second, min(best, entry)), best = max(best, entry);
  }
  const float found = keys[index_of(best)];
  return C::kTop2 && second != 0 ? add_rounded(found, keys[index_of(second)]) : found;
}

// Sets the rank of each expert outside the best groups to 0.
template <class C>
__device__ __forceinline__ void leave_groups_out(float* keys, uint32_t (&rank)[RouterRow<C>::kOwn]) {
  using Row = RouterRow<C>;
  constexpr int kGroupsOfLane = (C::kGroups + 31) / 32;
  __syncwarp();
  uint64_t groups[kGroupsOfLane];
#pragma unroll
  for (int i = 0; i < kGroupsOfLane; ++i) {
    const int group = Row::lane() + 32 * i;
    groups[i] = group < C::kGroups ? entry_of(rank_of(group_key<C>(keys + group * Row::kSize)), group) : 0;
  }
  uint32_t kept = 0;  // one bit per expert of this lane
  for (int round = 0; round < C::kTopGroups; ++round) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kGroupsOfLane; ++i) best = max(best, groups[i]);
    best = best_of_warp(best);
#pragma unroll
    for (int i = 0; i < kGroupsOfLane; ++i) groups[i] = groups[i] == best ? 0 : groups[i];
#pragma unroll
    for (int i = 0; i < Row::kOwn; ++i) kept |= static_cast<uint32_t>(Row::expert(i) / Row::kSize == index_of(best)) << i;
  }
#pragma unroll
  for (int i = 0; i < Row::kOwn; ++i) rank[i] = kept >> i & 1 ? rank[i] : 0;
}

struct Choice {
  int expert;
  float z;
  bool known;
};

// Lane `slot` returns the choice of this slot; lanes from top_k on return no choice.
template <class C>
__device__ __forceinline__ Choice chosen(const RouterRow<C>& row, uint32_t (&rank)[RouterRow<C>::kOwn]) {
  using Row = RouterRow<C>;
  Choice mine{0, 0.f, Row::lane() < C::kTopK};
  uint32_t taken = 0;
#pragma unroll 1
  for (int slot = 0; slot < C::kTopK; ++slot) {
    uint64_t best = 0;
    float z = 0.f;
#pragma unroll
    for (int i = 0; i < Row::kOwn; ++i) {
      const uint64_t entry = entry_of(rank[i], Row::expert(i));
      const bool better = Row::expert(i) < C::kExperts && !(taken >> i & 1) && entry > best;
      best = better ? entry : best, z = better ? row.z[i] : z;
    }
    const int winner = index_of(best_of_warp(best));
    z = __shfl_sync(0xffffffffu, z, winner % 32);
    if (winner % 32 == Row::lane()) taken |= 1u << winner / 32;
    if (Row::lane() == slot) mine.expert = winner, mine.z = z;
  }
  return mine;
}

template <class C>
__device__ __forceinline__ float weight_of(const RouterRow<C>& row, const Choice& mine) {
  float weight = 0.f;
  if constexpr (C::kScore == Score::kSoftmaxChosen) {
    const float most = most_of_warp(mine.known ? mine.z : minus_infinity());
    const float part = mine.known ? ops::exp_(sub_rounded(mine.z, most)) : 0.f;
    weight = div_rounded(part, sum_of_warp(part));
  } else {
    weight = row.score(mine.z);
  }
  weight = mine.known ? weight : 0.f;
  if constexpr (C::kRenormalise) {
    const float total = sum_of_warp(weight);
    weight = div_rounded(weight, total == 0.f ? 1.f : total);
  }
  return weight;
}

template <class C>
__device__ __forceinline__ void route(const RouteParams& p) {
  using Row = RouterRow<C>;
  float* const keys = reinterpret_cast<float*>(dynamic_shared()) + threadIdx.x / 32 * C::kExperts;  // used with groups only
  const int64_t at = int64_t{blockIdx.x} * kRouteRows + threadIdx.x / 32;
  const int64_t counted = p.num_valid == nullptr ? p.rows : *p.num_valid;
  if (at >= p.rows || at >= counted || counted > p.rows) return;
  const int64_t place = at * C::kTopK + Row::lane();
  Row row;
  Choice mine{0, 0.f, false};
  if constexpr (!C::kGiven || C::kScore == Score::kSoftmax) row.load(p, at);
  if constexpr (C::kGiven) {
    const int id = Row::lane() < C::kTopK ? p.ids[place] : -1;
    mine = {min(max(id, 0), C::kExperts - 1), 0.f, id >= 0 && id < C::kExperts};
    if (mine.known) mine.z = logit_of<C>(p, at, id);
  } else {
    uint32_t rank[Row::kOwn];
#pragma unroll
    for (int i = 0; i < Row::kOwn; ++i) {
      const float key = row.key(p, i);
      rank[i] = rank_of(key);
      if (C::kGroups > 1 && Row::expert(i) < C::kExperts) keys[Row::expert(i)] = key;
    }
    if constexpr (C::kGroups > 1) leave_groups_out<C>(keys, rank);
    mine = chosen<C>(row, rank);
  }
  const float weight = weight_of<C>(row, mine);
  if (Row::lane() >= C::kTopK) return;
  if constexpr (!C::kGiven) p.ids[place] = mine.expert;
  p.weights[place] = mul_rounded(weight, p.scale);
  if (p.physical_ids == nullptr) return;
  const int32_t many = p.num_replicas[mine.expert], count = many >= 1 && many <= p.most_replicas ? many : 1;
  p.physical_ids[place] = p.replicas[int64_t{mine.expert} * p.most_replicas + at % count];
}

}  // namespace opfacade
