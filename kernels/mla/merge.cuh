// Second launch of a split latent decode: a part is 64 heads of 512 columns, so merging many by the block that ends last
// would take longer than to make them. The first launch has said for each unit which run starts there and goes on. All rows of
// those runs stand in a line that blocks take in turns, so that as many work whether one run has many parts or many have two.
// A thread merges four columns, in the order of the parts. Where nothing is split a block reads a few numbers and ends.
#pragma once
#include "kernels/attention/decode_join.cuh"
#include "kernels/mla/params.h"

namespace opfacade {

// Parts of a row that are read at once: many to hide latency, few where there are no more, because each costs instructions.
constexpr int kManyParts = 16, kFewParts = 4;
static_assert(32 % kManyParts == 0 && 32 % kFewParts == 0, "lanes hold their weights");

// Of a slice of the units, the runs that must be merged. Here, because all rows ask for them: from memory, whose one place that
// holds them would answer one warp after the other, a merge took four times as long.
struct SplitRuns {
  unsigned words[kMlaMergeSlice / 32];  // a bit for each unit
  SplitRun runs[kMlaMergeSlice];

  // By all threads. Returns how many there are.
  __device__ __forceinline__ int find(const MlaParams& p, int first) {
    constexpr int kTurns = kMlaMergeSlice / kMlaMergeThreads, kWarps = kMlaMergeThreads / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    SplitRun run[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int unit = first + i * kMlaMergeThreads + threadIdx.x;
      const int* at = reinterpret_cast<const int*>(&p.runs[unit]);
      run[i].count = 0;
      if (unit < p.units) run[i] = {__ldcg(at), __ldcg(at + 1), __ldcg(at + 2), __ldcg(at + 3), __ldcg(at + 4)};
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const unsigned split = __ballot_sync(0xffffffffu, run[i].count > 1);
      if (lane == 0) words[i * kWarps + warp] = split;
    }
    __syncthreads();
    int count = 0;
#pragma unroll
    for (int i = 0; i < kMlaMergeSlice / 32; ++i) {
      const unsigned split = words[i];
      if (i % kWarps == warp && (split >> lane & 1)) runs[count + __popc(split & (1u << lane) - 1)] = run[i / kWarps];
      count += __popc(split);
    }
    __syncthreads();
    return count;
  }
};

template <class C>
__device__ __forceinline__ void merge_row(const MlaParams& p, const SplitRun& run, int head) {
  const int first = head / C::kBlockHeads * p.base.slots;
  WorkItem item{};
  item.request = run.request, item.head = head / C::kBlockHeads;
  const Parts parts{0, run.count, run.first_slot + first, run.next_slot + first, run.step};
  const GlobalRows<C> rows{p.base, item, parts};
  if (run.count <= kFewParts) {
    merge_columns<C, kFewParts>(rows, head % C::kBlockHeads, threadIdx.x * 4);
  } else {
    merge_columns<C, kManyParts>(rows, head % C::kBlockHeads, threadIdx.x * 4);
  }
}

template <class C>
__device__ __forceinline__ void mla_merge(const MlaParams& p) {
  SplitRuns& split = *reinterpret_cast<SplitRuns*>(dynamic_shared());
  static_assert(sizeof(SplitRuns) <= kMlaMergeSharedBytes, "the launch asks for less");
  wait_for_previous();
#pragma unroll 1
  for (int first = blockIdx.y * kMlaMergeSlice; first < p.units; first += gridDim.y * kMlaMergeSlice) {
    const int rows = split.find(p, first) * p.base.heads;
#pragma unroll 1
    for (int row = blockIdx.x; row < rows; row += gridDim.x)
      merge_row<C>(p, split.runs[row / p.base.heads], row % p.base.heads);
  }
}

}  // namespace opfacade
