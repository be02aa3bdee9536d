// What the warps of a block leave for each other at the end of an item, and for later.
#pragma once
#include "kernels/attention/decode/state.cuh"

namespace opfacade {

// A part whose count is known at the end of the item after it: nobody waits for it in the middle of a stream.
struct Deferred {
  int last;  // it completed its run
  int request, head, run, count;
};

// What of an item is needed again only when it ends, and may wait elsewhere meanwhile.
struct Waiting {
  int request, head, run, count;
};

// Behind the stages. o of a warp lies in the stage that it fills next: what it held has been computed.
template <class C>
struct WarpResults {
  float max[C::kWarps][C::kRows];
  float sum[C::kWarps][C::kRows];
  int o_at[C::kWarps];  // of the shared memory
  Deferred deferred;
  Waiting waiting[C::kWarps];

  __device__ __forceinline__ ResultRow<C> row(unsigned char* shared, int warp, int row) const {
    return {reinterpret_cast<float*>(shared + o_at[warp]), row};
  }
};

// By each warp for itself.
__device__ __forceinline__ void put_by(const WorkItem& item, volatile Waiting& waiting) {
  if (threadIdx.x % 32 == 0)
    waiting.request = item.request, waiting.head = item.head, waiting.run = item.run, waiting.count = item.count;
  __syncwarp();
}
__device__ __forceinline__ void take_up(const volatile Waiting& waiting, WorkItem& item) {
  item.request = waiting.request, item.head = waiting.head, item.run = waiting.run, item.count = waiting.count;
}

// o_at: see WarpResults.
template <class C>
__device__ __forceinline__ void publish(const DecodeState<C>& state, unsigned char* shared, int o_at, WarpResults<C>& results) {
  static_assert(C::kRows * C::kHeadDim * sizeof(float) <= 2 * WarpLoader<C>::kTileBytes, "o must fit a stage");
  const int warp = threadIdx.x / 32;
  __syncwarp();  // every lane is done with the stage
  results.o_at[warp] = o_at;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const int row = HeadLayout<C>::head(which);
    const float sum = HeadLayout<C>::sum_of_head(state.sum[which]);
    if (row >= C::kRows) continue;
    results.max[warp][row] = state.max[which];
    results.sum[warp][row] = sum;
    TileMath<C>::store_row(state, which, ResultRow<C>(reinterpret_cast<float*>(shared + o_at), row));
  }
}

template <class C, class Rows>
__device__ __forceinline__ void combine(const DecodeParams& p, const WorkItem& item, unsigned char* shared,
                                        const WarpResults<C>& results, Rows& rows) {
  constexpr int kColumns = C::kHeadDim / 4;
  for (int i = threadIdx.x; i < num_rows<C>(item) * kColumns; i += C::kWarps * 32) {
    const int row = i / kColumns, column = i % kColumns * 4;
    float row_max = minus_infinity();
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) row_max = fmaxf(row_max, results.max[w][row]);
    float sum = 0.f;
    float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
      const float weight = exp2_approx((results.max[w][row] - finite_max(row_max)) * p.score.log2_scale);
      const float4 part = results.row(shared, w, row).template at<float4>(column);
      sum += weight * results.sum[w][row];
      o.x += weight * part.x, o.y += weight * part.y, o.z += weight * part.z, o.w += weight * part.w;
    }
    const float factor = reciprocal_or_zero(sum) * value_factor<C>(p, item);
    rows.store(row, column, o, factor, row_lse(row_max, sum, p.score.scale));
  }
}

}  // namespace opfacade
