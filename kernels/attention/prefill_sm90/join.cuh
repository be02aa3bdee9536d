// Merges the partials of a cut tile in the launch that stores them, without waiting. When a CTA has finished its work, each consumer
// warp arrives at the counter of its 16 rows, for each of the (at most two) parts that it stored; the warp that arrives last merges
// the partials in their order. Merging between two works would exceed the register budget.
#pragma once
#include "kernels/attention/decode/schedule/count.cuh"
#include "kernels/attention/prefill/finish.cuh"
#include "kernels/attention/prefill_sm90/shared_storage.cuh"
#include "kernels/common/merge.cuh"

namespace opfacade {

// The partials of up to 16 rows. Other CTAs wrote them in this launch, so the loads bypass L1 (ld.global.cg).
template <class C>
struct RowPartials {
  const PrefillParams& p;
  int begin, end;  // rows of the tile, [begin, end)
  int cta;         // the CTA that has the first part
  int count;       // number of parts of the tile

  __device__ __forceinline__ int64_t at(int part, int row) const {
    return static_cast<int64_t>(part_slot(cta + part, part == 0)) * p.slot_rows + row;
  }
  // Row of this lane; two lanes share a row.
  __device__ __forceinline__ int row() const { return min(begin + static_cast<int>(threadIdx.x % 16), end - 1); }
  __device__ __forceinline__ float lse(int part) const { return __ldcg(p.partial_lse + at(part, row())); }
  __device__ __forceinline__ RowWeights weights() const {
    float most = minus_infinity(), total = 0.f;
#pragma unroll 4
    for (int part = 0; part < count; ++part) most = fmaxf(most, lse(part));
    const float base = finite_max(most);
#pragma unroll 4
    for (int part = 0; part < count; ++part) total += state_weight(lse(part), base);
    return {base, total};
  }
  __device__ __forceinline__ float4 o(int part, int row, int column) const {
    return __ldcg(reinterpret_cast<const float4*>(p.partial_o + at(part, row) * C::kHeadDimVo + column));
  }
};

constexpr int kRowsAtOnce = 4;

// One warp adds the partials of kRowsAtOnce rows from `first` on. base: the base of the lane's row.
template <class C>
__device__ __forceinline__ void add_partials(const RowPartials<C>& parts, float base, int first, int column, float (&sum)[kRowsAtOnce][4]) {
#pragma unroll 2
  for (int part = 0; part < parts.count; ++part) {
    const float own = state_weight(parts.lse(part), base);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const float4 o = parts.o(part, min(first + i, parts.end - 1), column);
      const float weight = __shfl_sync(0xffffffffu, own, first + i - parts.begin);
      sum[i][0] += weight * o.x, sum[i][1] += weight * o.y, sum[i][2] += weight * o.z, sum[i][3] += weight * o.w;
    }
  }
}

// One warp merges and stores the rows.
template <class C>
__device__ __forceinline__ void merge_rows(const PrefillParams& p, const Work& work, const RowPartials<C>& parts) {
  const RowWeights weights = parts.weights();
  const int head = work.head * C::kGroup + (work.tile.first + parts.row()) % C::kGroup;
  const Sunk sunk = merged_row<C>(p, head, merged_lse(weights));
  const float factor = reciprocal_or_zero(weights.total) * sunk.factor;
  if constexpr (C::kReturnLse)
    if (threadIdx.x % 32 < parts.end - parts.begin) p.lse[row_in_o<C>(p, work, parts.row(), p.heads, 1)] = sunk.lse;
#pragma unroll 1
  for (int first = parts.begin; first < parts.end; first += kRowsAtOnce)
#pragma unroll 1
    for (int panel = 0; panel < C::kHeadDimVo; panel += 128) {
      const int column = panel + threadIdx.x % 32 * 4;
      const bool mine = column < C::kHeadDimVo;
      float sum[kRowsAtOnce][4] = {};
      add_partials(parts, weights.base, first, mine ? column : 0, sum);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const float scale = __shfl_sync(0xffffffffu, factor, first + i - parts.begin);
        char* dst = static_cast<char*>(p.o) + row_in_o<C>(p, work, first + i, p.o_row_stride, p.o_head_stride);
        if (mine && first + i < parts.end) store_merged<typename C::Q>(dst, column, sum[i], scale, p.o_aligned);
      }
    }
}

// Must be called by one lane, after its warp has stored its rows. True for the last of `count` arrivals.
template <class C>
__device__ __forceinline__ bool arrives_last(const PrefillParams& p, int count, int cta, int warp) {
  Counter* const counter = p.counters + cta * kConsumerWarps<C> + warp;
  const bool last = previous_arrivals(p, counter, add_one(counter)) + 1 == count;
  if (last) reset_counter(p, counter);
  return last;
}

template <class C>
__device__ __forceinline__ void merge_parts(const PrefillParams& p, const WgmmaShared<C>& smem) {
  const int warp = threadIdx.x / 32 - kWarpgroup / 32, begin = warp * 16;
#pragma unroll 1
  for (const Work& work : smem.pieces.parts) {
    const TilePart part = TilePart::of(work.split);
    const int cta = blockIdx.x - part.index, end = min(begin + 16, work.tile.rows);
    if (!rarely(begin < end)) continue;
    bool last = false;
    fence_device();
    __syncwarp();
    if (threadIdx.x % 32 == 0) last = arrives_last<C>(p, part.count, cta, warp);
    if (!__shfl_sync(0xffffffffu, static_cast<int>(last), 0)) continue;
    fence_device();
    merge_rows<C>(p, work, {p, begin, end, cta, part.count});
  }
}

}  // namespace opfacade
