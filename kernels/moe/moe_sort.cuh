// Stable sort of choices by expert. There is one CTA, and each warp has a range of choices. A warp counts the choices of each
// expert in its range; prefix sums over warps and then over experts give the position at which each warp writes; a second pass
// over the ranges writes. No atomics: within a warp, ballots show which lanes have the same expert and how many of them are
// lower. Ids of other ranks' experts get no position. One launch without a workspace: one SM reads 65,536 choices, 256 KB,
// twice.
#pragma once
#include "kernels/moe/moe_sort_params.h"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ptx.cuh"

namespace opfacade {

constexpr int bits_of(int most) {
  int bits = 0;
  while (most >> bits) ++bits;
  return bits;
}

template <int kExperts>
struct SortMemory {
  static constexpr int kWarps = sort_warps(kExperts), kBits = bits_of(kExperts);
  int32_t count[kWarps][kExperts];  // the number of choices per warp and expert; later the position of the next choice
  int32_t total[kExperts];
};

// The mask of the lanes whose value has the same lowest kBits bits.
template <int kBits>
__device__ __forceinline__ uint32_t lanes_like(uint32_t value) {
  uint32_t same = 0xffffffffu;
#pragma unroll
  for (int bit = 0; bit < kBits; ++bit) {
    const bool set = value >> bit & 1;
    const uint32_t with = __ballot_sync(0xffffffffu, set);
    same &= set ? with : ~with;
  }
  return same;
}

// Calls visit(choice, local expert or kExperts, lanes with the same expert) for each choice of a warp, 32 at a time; lanes past
// the range have expert kExperts and choice -1.
template <int kExperts, class Visit>
__device__ __forceinline__ void walk(const MoeSortParams& p, Visit visit) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t share = (p.choices + SortMemory<kExperts>::kWarps - 1) / SortMemory<kExperts>::kWarps;
  const int64_t first = warp * share, stop = min(first + share, p.choices);
  int64_t at = first + lane;
  int32_t next = at < stop ? p.ids[at] : -1;
  for (int64_t base = first; base < stop; base += 32, at += 32) {
    const bool there = at < stop;
    const int32_t id = next;
    next = at + 32 < stop ? p.ids[at + 32] : -1;  // loaded while the current choice is processed
    const uint32_t local = there && id >= p.first_expert ? static_cast<uint32_t>(id) - p.first_expert : kExperts;
    const uint32_t expert = local < kExperts ? local : kExperts;
    visit(there ? at : int64_t{-1}, expert, lanes_like<SortMemory<kExperts>::kBits>(expert));
  }
}

// Computes the first position of each warp's choices, and indptr.
template <int kExperts>
__device__ __forceinline__ void begin_of_each(const MoeSortParams& p, SortMemory<kExperts>& memory) {
  for (int expert = threadIdx.x; expert < kExperts; expert += blockDim.x) {
    int32_t sum = 0;
    for (int warp = 0; warp < SortMemory<kExperts>::kWarps; ++warp) {
      const int32_t own = memory.count[warp][expert];
      memory.count[warp][expert] = sum, sum += own;
    }
    memory.total[expert] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int32_t before = 0;
    for (int base = 0; base < kExperts; base += 32) {
      const int expert = base + threadIdx.x;
      const int32_t own = expert < kExperts ? memory.total[expert] : 0;
      int32_t sum = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int32_t other = __shfl_up_sync(0xffffffffu, sum, step);
        if (static_cast<int>(threadIdx.x) >= step) sum += other;
      }
      if (expert < kExperts) memory.total[expert] = p.indptr[expert] = before + sum - own;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (threadIdx.x == 0) p.indptr[kExperts] = before;
  }
  __syncthreads();
}

template <int kExperts>
__device__ __forceinline__ void moe_sort(const MoeSortParams& p) {
  auto& memory = *reinterpret_cast<SortMemory<kExperts>*>(dynamic_shared());
  const int warp = threadIdx.x / 32;
  const uint32_t lower = (1u << threadIdx.x % 32) - 1;
  for (int expert = threadIdx.x % 32; expert < kExperts; expert += 32) memory.count[warp][expert] = 0;
  __syncwarp();
  walk<kExperts>(p, [&](int64_t, uint32_t expert, uint32_t same) {
    if (expert < kExperts && (same & lower) == 0) memory.count[warp][expert] += __popc(same);
    __syncwarp();
  });
  __syncthreads();
  begin_of_each(p, memory);
  walk<kExperts>(p, [&](int64_t choice, uint32_t expert, uint32_t same) {
    const int32_t begin = expert < kExperts ? memory.total[expert] + memory.count[warp][expert] : 0;
    __syncwarp();
    if (expert < kExperts && (same & lower) == 0) memory.count[warp][expert] += __popc(same);
    __syncwarp();
    if (choice < 0) return;
    const int32_t at = begin + __popc(same & lower);
    p.places[choice] = expert < kExperts ? at : -1;
    if (expert < kExperts) p.order[at] = static_cast<int32_t>(choice), p.x_rows[at] = static_cast<int32_t>(choice / p.top_k);
  });
  __syncthreads();
  for (int64_t at = int64_t{p.indptr[kExperts]} + threadIdx.x; at < p.choices; at += blockDim.x) p.order[at] = p.x_rows[at] = 0;
}

}  // namespace opfacade
