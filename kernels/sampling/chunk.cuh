// Chunks of a row: groups of four tokens whose loads are in flight together.
#pragma once
#include "kernels/sampling/row.cuh"

namespace opfacade {

constexpr uint32_t kGroupStep = 4 * kSampleThreads;  // from a group of a thread to its next
template <class C>
constexpr int kAdjusted = int{C::kPenalties} + int{C::kBias} + int{C::kBiasList} + int{C::kSoftCap};  // each takes code and registers
template <class C>
constexpr int kGroupsAhead = kAdjusted<C> > 1 ? 2 : kAdjusted<C> == 1 ? 4 : C::kBitmask ? 6 : 8;

template <class C>
using Chunk = float[kGroupsAhead<C>][4];

// Groups from the token `from` on, adjusted by change(token, group); -inf from `stop` on, which is where whole groups end.
template <class C, class F>
__device__ __forceinline__ void read_wide(const Row<C>& row, uint32_t from, uint32_t stop, Chunk<C>& a, F change) {
  Packed<C> packed[kGroupsAhead<C>];
#pragma unroll
  for (int i = 0; i < kGroupsAhead<C>; ++i) {
    packed[i] = {};
    if (from + kGroupStep * i < stop) row.fetch(from, kGroupStep * i, packed[i]);
  }
#pragma unroll
  for (int i = 0; i < kGroupsAhead<C>; ++i) {
    const uint32_t token = from + kGroupStep * i;
    Loaded<4> loaded;
    row.unpack(token, packed[i], loaded);
    if (token < stop) change(token, loaded);
#pragma unroll
    for (int j = 0; j < 4; ++j) a[i][j] = token < stop ? loaded.a[j] : minus_infinity();
  }
}

// One group, of any alignment.
template <class C, class F>
__device__ __forceinline__ void read_narrow(const Row<C>& row, uint32_t token, uint32_t end, Chunk<C>& a, F change) {
#pragma unroll
  for (int i = 0; i < kGroupsAhead<C>; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) a[i][j] = minus_infinity();
  if (token >= end) return;
  Loaded<4> loaded;
  row.load(token, loaded);
  change(token, loaded);
#pragma unroll
  for (int j = 0; j < 4; ++j) a[0][j] = loaded.a[j];
}

}  // namespace opfacade
