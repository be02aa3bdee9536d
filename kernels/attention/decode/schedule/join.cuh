// The parts of a run are merged in the launch that makes them, by the block that finishes last: each counts itself in after
// its part is stored, and who makes the count full merges, in the order of the parts. Nobody waits for anybody's work.
#pragma once
#include "kernels/attention/decode/schedule/count.cuh"
#include "kernels/attention/decode/output.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/common/merge.cuh"

namespace opfacade {

// By one thread, after a barrier behind which all of the block's part is stored: is it the last?
__device__ __forceinline__ bool count_in(const DecodeParams& p, const Parts& parts) {
  Counter* const counter = p.counters + parts.first_slot;
  const bool last = counted(p, counter, add_one(counter)) + 1 == parts.count;
  if (last) set_back(p, counter);
  return last;
}

// Before anything else.
__device__ __forceinline__ void begin(const DecodeParams& p) {
  allow_dependents();
  const unsigned line = (blockIdx.x + threadIdx.x * gridDim.x) * 128;  // of a large grid it wraps, to lines that are there
  if (line < static_cast<unsigned>(p.table_bytes)) prefetch_l2(reinterpret_cast<const char*>(p.table.indices) + line);
  wait_for_previous();
}

// The parts of one row. Other blocks wrote them in this launch: past the L1.
template <class C>
struct PartRow {
  const GlobalRows<C>& rows;
  int row;

  __device__ __forceinline__ int count() const { return rows.parts.count; }
  __device__ __forceinline__ float lse(int part) const {
    return part < count() ? __ldcg(rows.p.partial_lse + rows.slot_row(part, row)) : minus_infinity();
  }
  __device__ __forceinline__ float4 o(int part, int column) const {
    if (part >= count()) return make_float4(0.f, 0.f, 0.f, 0.f);
    return __ldcg(reinterpret_cast<const float4*>(rows.p.partial_o + rows.slot_row(part, row) * C::kHeadDim + column));
  }
};

struct MergedColumns {
  float4 sum;   // not normalised
  float base;   // maximum of lse so far
  float total;  // of the weights
};

// Adds kBatch parts, by a warp; all loads go out together, for the end of the whole launch may be waiting for this.
template <class C, int kBatch>
__device__ __forceinline__ void add_parts(const PartRow<C>& row, int first, int column, MergedColumns& merged) {
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
  const PartRow<C> parts{rows, row};
  const bool valid = column < C::kHeadDim;
  MergedColumns merged{make_float4(0.f, 0.f, 0.f, 0.f), minus_infinity(), 0.f};
#pragma unroll 1
  for (int first = 0; first < parts.count(); first += kBatch) add_parts<C, kBatch>(parts, first, valid ? column : 0, merged);
  const float lse = merged_lse({finite_max(merged.base), merged.total});
  if (valid) write_columns<C>(rows.p, rows.item, row, column, merged.sum, reciprocal_or_zero(merged.total), lse);
}

// A warp takes a row.
template <class C>
__device__ __forceinline__ void merge_parts(const GlobalRows<C>& rows) {
  constexpr int kRegisters = 65536 / (32 * C::kWarps * C::kBlocksPerSm);
  constexpr int kBatch = C::kHeadDim == 256 || kRegisters < 160 ? 8 : kRegisters < 240 ? 16 : 32;
#pragma unroll 1
  for (int row = threadIdx.x / 32; row < num_rows<C>(rows.item); row += C::kWarps)
#pragma unroll 1
    for (int first = 0; first < C::kHeadDim; first += 128) merge_columns<C, kBatch>(rows, row, first + threadIdx.x % 32 * 4);
}

// Behind a barrier, after a block stored a part: merge now if it was the last. `last` is shared memory that nobody uses meanwhile.
template <class C>
__device__ __forceinline__ void join(const GlobalRows<C>& rows, volatile int& last) {
  if (threadIdx.x == 0) last = count_in(rows.p, rows.parts);
  __syncthreads();
  if (last) merge_parts<C>(rows);
}

}  // namespace opfacade
