// Merge of the partials of a work unit in the same launch. After it stores its partial, a CTA increments the unit's counter;
// the CTA that arrives last merges all partials, in their order. No CTA waits for another.
#pragma once
#include "kernels/attention/decode/schedule/count.cuh"
#include "kernels/attention/decode/output.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/common/merge.cuh"

namespace opfacade {

// True if this CTA arrives last. Must be called by one thread, after a CTA barrier that follows the stores of the partial.
__device__ __forceinline__ bool arrives_last(const DecodeParams& p, const Partials& partials) {
  Counter* const counter = p.counters + partials.first_slot;
  const bool last = previous_arrivals(p, counter, add_one(counter)) + 1 == partials.count;
  if (last) reset_counter(p, counter);
  return last;
}

// Kernel prologue: allows the dependent launch, prefetches the page table, and waits for the previous kernel.
__device__ __forceinline__ void kernel_prologue(const DecodeParams& p) {
  allow_dependents();
  const unsigned line = (blockIdx.x + threadIdx.x * gridDim.x) * 128;  // wraps around in a large grid, so that the line exists
  if (line < static_cast<unsigned>(p.table_bytes)) prefetch_l2(reinterpret_cast<const char*>(p.table.indices) + line);
  wait_for_previous();
}

// The partials of one row. Other CTAs wrote them in this launch, so the loads bypass L1.
template <class C>
struct PartialRow {
  const GlobalRows<C>& rows;
  int row;

  __device__ __forceinline__ int count() const { return rows.partials.count; }
  __device__ __forceinline__ float lse(int partial) const {
    return partial < count() ? __ldcg(rows.p.partial_lse + rows.slot_row(partial, row)) : minus_infinity();
  }
  __device__ __forceinline__ float4 o(int partial, int column) const {
    if (partial >= count()) return make_float4(0.f, 0.f, 0.f, 0.f);
    return __ldcg(reinterpret_cast<const float4*>(rows.p.partial_o + rows.slot_row(partial, row) * C::kHeadDim + column));
  }
};

struct MergedColumns {
  float4 sum;   // not normalised
  float base;   // largest lse of the partials so far
  float total;  // sum of the weights
};

// One warp adds kBatch partials. All loads are issued together, because the end of the launch may depend on this latency.
template <class C, int kBatch>
__device__ __forceinline__ void add_partials(const PartialRow<C>& row, int first, int column, MergedColumns& merged) {
  float4 o[kBatch];
#pragma unroll
  for (int i = 0; i < kBatch; ++i) o[i] = row.o(first + i, column);
  const float lse = row.lse(first + threadIdx.x % kBatch);
  const float top = fmaxf(merged.base, warp_max(lse)), base = finite_max(top);
  const float rescale = state_weight(merged.base, base), own = state_weight(lse, base);
  float4& sum = merged.sum;
  sum.x *= rescale, sum.y *= rescale, sum.z *= rescale, sum.w *= rescale, merged.total *= rescale;
  merged.base = top;
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    const float weight = __shfl_sync(0xffffffffu, own, i);
    merged.total += weight;
    sum.x += weight * o[i].x, sum.y += weight * o[i].y, sum.z += weight * o[i].z, sum.w += weight * o[i].w;
  }
}

template <class C, int kBatch>
__device__ __forceinline__ void merge_columns(const GlobalRows<C>& rows, int row, int column) {
  const PartialRow<C> partials{rows, row};
  const bool valid = column < C::kHeadDim;
  MergedColumns merged{make_float4(0.f, 0.f, 0.f, 0.f), minus_infinity(), 0.f};
#pragma unroll 1
  for (int first = 0; first < partials.count(); first += kBatch) add_partials<C, kBatch>(partials, first, valid ? column : 0, merged);
  const float lse = merged_lse({finite_max(merged.base), merged.total});
  if (valid) write_columns<C>(rows.p, rows.item, row, column, merged.sum, reciprocal_or_zero(merged.total), lse);
}

// One warp merges one row.
template <class C>
__device__ __forceinline__ void merge_partials(const GlobalRows<C>& rows) {
  constexpr int kRegisters = 65536 / (32 * C::kWarps * C::kBlocksPerSm);
  constexpr int kBatch = C::kHeadDim == 256 || kRegisters < 160 ? 8 : kRegisters < 240 ? 16 : 32;
#pragma unroll 1
  for (int row = threadIdx.x / 32; row < num_rows<C>(rows.item); row += C::kWarps)
#pragma unroll 1
    for (int first = 0; first < C::kHeadDim; first += 128) merge_columns<C, kBatch>(rows, row, first + threadIdx.x % 32 * 4);
}

// Merges if this CTA arrives last. Must be called after a CTA barrier that follows the stores of the partial. `last` is unused
// shared memory.
template <class C>
__device__ __forceinline__ void merge_if_last(const GlobalRows<C>& rows, volatile int& last) {
  if (threadIdx.x == 0) last = arrives_last(rows.p, rows.partials);
  __syncthreads();
  if (last) merge_partials<C>(rows);
}

}  // namespace opfacade
