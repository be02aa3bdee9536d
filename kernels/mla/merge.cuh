// Second launch of a split latent decode: a part is 64 heads of 512 columns, so merging many by the block that ends last
// would take longer than to make them. The first launch has said for each unit which run starts there and goes on. All rows of
// those runs stand in a line that blocks take in turns, so that as many work whether one run has many parts or many have two.
// A thread merges four columns, in the order of the parts. Where nothing is split a block reads a few numbers and ends.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"
#include "kernels/mla/params.h"

namespace opfacade {

constexpr int kMergedRows = kMlaMergeThreads / (kMlaLatent / 4);  // of a block, at once

// Of a slice of the units, the runs that must be merged. Here, because all rows ask for them: from memory, whose one place that
// holds them would answer one warp after the other, a merge took four times as long.
struct SplitRuns {
  unsigned words[kMlaMergeSlice / 32];  // a bit for each unit
  SplitRun runs[kMlaMergeSlice];

  // By all threads, one a unit. Returns how many there are.
  __device__ __forceinline__ int find(const MlaParams& p, int first) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int* at = reinterpret_cast<const int*>(&p.runs[first + threadIdx.x]);
    SplitRun run{};
    if (first + static_cast<int>(threadIdx.x) < p.units)
      run = {__ldcg(at), __ldcg(at + 1), __ldcg(at + 2), __ldcg(at + 3), __ldcg(at + 4)};
    const unsigned split = __ballot_sync(0xffffffffu, run.count > 1);
    __syncthreads();
    if (lane == 0) words[warp] = split;
    __syncthreads();
    int before = 0, count = 0;
#pragma unroll
    for (int i = 0; i < kMlaMergeSlice / 32; ++i) {
      before = i == warp ? count : before;
      count += __popc(words[i]);
    }
    if (run.count > 1) runs[before + __popc(split & (1u << lane) - 1)] = run;
    __syncthreads();
    return count;
  }
};
static_assert(kMlaMergeSlice == kMlaMergeThreads, "a thread looks at a unit");

template <class C>
__device__ __forceinline__ void merge_row(const MlaParams& p, const SplitRun& run, int head) {
  const int first = head / C::kBlockHeads * p.base.slots;
  WorkItem item{};
  item.request = run.request, item.head = head / C::kBlockHeads;
  const Parts parts{0, run.count, run.first_slot + first, run.next_slot + first, run.step};
  const int column = threadIdx.x % (kMlaLatent / 4) * 4;
  merge_columns<C, kMlaMergedParts>(GlobalRows<C>{p.base, item, parts}, head % C::kBlockHeads, column);
}

template <class C>
__device__ __forceinline__ void mla_merge(const MlaParams& p) {
  SplitRuns& split = *reinterpret_cast<SplitRuns*>(dynamic_shared());
  static_assert(sizeof(SplitRuns) <= kMlaMergeSharedBytes, "the launch asks for less");
  wait_for_previous();
#pragma unroll 1
  for (int first = blockIdx.y * kMlaMergeSlice; first < p.units; first += gridDim.y * kMlaMergeSlice) {
    const int rows = split.find(p, first) * p.base.heads;
    int row = threadIdx.x / (kMlaLatent / 4) * gridDim.x + blockIdx.x;
#pragma unroll 1
    for (; row < rows; row += kMergedRows * gridDim.x) merge_row<C>(p, split.runs[row / p.base.heads], row % p.base.heads);
  }
}

}  // namespace opfacade
