// Second launch of a split latent decode. A partial is 64 heads x 512 columns, so a merge by the CTA that arrives last would
// take longer than the attention. The first launch stored a SplitRequest for each unit. The rows of all split requests form one
// list that CTAs take round-robin, which balances few requests with many partials and many with few. A thread merges four
// columns, in the order of the partials.
#pragma once
#include "kernels/attention/decode/schedule/join.cuh"
#include "kernels/mla/params.h"

namespace opfacade {

constexpr int kMergedRows = kMlaMergeThreads / (kMlaLatent / 4);  // rows that a CTA merges at once

// The split requests of a slice of units, in shared memory. If all rows read them from global memory, the common address would
// serialise the warps (four times slower).
struct SplitRequests {
  unsigned words[kMlaMergeSlice / 32];  // one bit per unit
  SplitRequest list[kMlaMergeSlice];

  // Must be called by all threads, one unit per thread. Returns the number of split requests.
  __device__ __forceinline__ int find(const MlaParams& p, int first) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int* at = reinterpret_cast<const int*>(&p.split_requests[first + threadIdx.x]);
    SplitRequest own{};
    if (first + static_cast<int>(threadIdx.x) < p.units)
      own = {__ldcg(at), __ldcg(at + 1), __ldcg(at + 2), __ldcg(at + 3), __ldcg(at + 4)};
    const unsigned split = __ballot_sync(0xffffffffu, own.count > 1);
    __syncthreads();
    if (lane == 0) words[warp] = split;
    __syncthreads();
    int before = 0, count = 0;
#pragma unroll
    for (int i = 0; i < kMlaMergeSlice / 32; ++i) {
      before = i == warp ? count : before;
      count += __popc(words[i]);
    }
    if (own.count > 1) list[before + __popc(split & (1u << lane) - 1)] = own;
    __syncthreads();
    return count;
  }
};
static_assert(kMlaMergeSlice == kMlaMergeThreads, "a thread looks at a unit");

template <class C>
__device__ __forceinline__ void merge_row(const MlaParams& p, const SplitRequest& request, int head) {
  const int first = head / C::kBlockHeads * p.base.slots;
  WorkItem item{};
  item.request = request.request, item.head = head / C::kBlockHeads;
  const Partials partials{0, request.count, request.first_slot + first, request.next_slot + first, request.step};
  const int column = threadIdx.x % (kMlaLatent / 4) * 4;
  merge_columns<C, kMlaMergedPartials>(GlobalRows<C>{p.base, item, partials}, head % C::kBlockHeads, column);
}

template <class C>
__device__ __forceinline__ void mla_merge(const MlaParams& p) {
  SplitRequests& requests = *reinterpret_cast<SplitRequests*>(dynamic_shared());
  static_assert(sizeof(SplitRequests) <= kMlaMergeSharedBytes, "the launch asks for less");
  wait_for_previous();
#pragma unroll 1
  for (int first = blockIdx.y * kMlaMergeSlice; first < p.units; first += gridDim.y * kMlaMergeSlice) {
    const int rows = requests.find(p, first) * p.base.heads;
    int row = threadIdx.x / (kMlaLatent / 4) * gridDim.x + blockIdx.x;
#pragma unroll 1
    for (; row < rows; row += kMergedRows * gridDim.x) merge_row<C>(p, requests.list[row / p.base.heads], row % p.base.heads);
  }
}

}  // namespace opfacade
