// Results that the warps of a CTA exchange at the end of an item, and the state that is kept for the next item.
#pragma once
#include "kernels/attention/decode/state.cuh"

namespace opfacade {

// A partial whose arrival count is read one item later, so that the pipeline does not wait for the atomic operation.
struct Deferred {
  int last;  // 1 if this CTA arrived last
  int request, head, unit_start, count;
};

// The fields of an item that are needed only at its end. They are stored in shared memory to save registers.
struct SavedItem {
  int request, head, unit_start, count;
};

// Located after the stages in shared memory. The o of a warp overwrites the stage that the warp fills next, because the tile of
// that stage has been computed.
template <class C>
struct WarpResults {
  float max[C::kWarps][C::kRows];
  float sum[C::kWarps][C::kRows];
  int o_at[C::kWarps];  // offset in shared memory
  Deferred deferred;
  SavedItem saved[C::kWarps];

  __device__ __forceinline__ ResultRow<C> row(unsigned char* shared, int warp, int row) const {
    return {reinterpret_cast<float*>(shared + o_at[warp]), row};
  }
};

// Called by each warp for its own item.
__device__ __forceinline__ void save_item(const WorkItem& item, volatile SavedItem& saved) {
  if (threadIdx.x % 32 == 0)
    saved.request = item.request, saved.head = item.head, saved.unit_start = item.unit_start, saved.count = item.count;
  __syncwarp();
}
__device__ __forceinline__ void restore_item(const volatile SavedItem& saved, WorkItem& item) {
  item.request = saved.request, item.head = saved.head, item.unit_start = saved.unit_start, item.count = saved.count;
}

// Stores the results of a warp. For o_at, see WarpResults.
template <class C>
__device__ __forceinline__ void store_warp_results(const DecodeState<C>& state, unsigned char* shared, int o_at, WarpResults<C>& results) {
  static_assert(C::kRows * C::kHeadDim * sizeof(float) <= 2 * WarpLoader<C>::kTileBytes, "o must fit a stage");
  const int warp = threadIdx.x / 32;
  __syncwarp();  // every lane has finished reading the stage
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
__device__ __forceinline__ void merge_warps(const DecodeParams& p, const WorkItem& item, unsigned char* shared,
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
