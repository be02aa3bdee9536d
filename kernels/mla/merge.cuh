// Second launch of a split latent decode: a part is 64 heads of 512 columns, so merging many by the block that ends last
// would take longer than to make them. The first launch has said for each unit which run starts there and goes on; a warp
// merges 128 columns of a row, in the order of the parts. Where nothing is split a block reads a few numbers and ends.
#pragma once
#include "kernels/attention/decode_join.cuh"
#include "kernels/mla/params.h"

namespace opfacade {

constexpr int kMlaMergeRows = 2;  // of a block
constexpr int kMlaMergeBatch = 16;

template <class C>
__device__ __forceinline__ void merge_run(const MlaParams& p, const SplitRun& run) {
  const int head = blockIdx.y * kMlaMergeRows + threadIdx.x / 128, first = head / C::kBlockHeads * p.base.slots;
  if (head >= p.base.heads) return;
  WorkItem item{};
  item.request = run.request, item.head = head / C::kBlockHeads;
  const Parts parts{0, run.count, run.first_slot + first, run.next_slot + first, run.step};
  merge_columns<C, kMlaMergeBatch>(GlobalRows<C>{p.base, item, parts}, head % C::kBlockHeads, threadIdx.x % 128 * 4);
}

template <class C>
__device__ __forceinline__ void mla_merge(const MlaParams& p) {
  wait_for_previous();
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int base = blockIdx.x; base < p.units; base += 32 * kMlaMergeStride) {
    const int unit = base + lane * kMlaMergeStride;
    const bool split = unit < p.units && __ldcg(&p.runs[unit].count) > 1;
    for (unsigned left = __ballot_sync(0xffffffffu, split); left != 0; left &= left - 1) {
      const int* words = reinterpret_cast<const int*>(&p.runs[base + (__ffs(left) - 1) * kMlaMergeStride]);
      merge_run<C>(p, {__ldcg(words), __ldcg(words + 1), __ldcg(words + 2), __ldcg(words + 3), __ldcg(words + 4)});
    }
  }
}

}  // namespace opfacade
