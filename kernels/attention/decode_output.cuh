// Where a decode block reads its query heads and writes its results: o and lse when the request has one split, f32
// partials at the item's place in the workspace otherwise.
#pragma once
#include "kernels/attention/decode_schedule.cuh"
#include "kernels/common/chunk.cuh"
#include "kernels/common/dtype.cuh"

namespace opfacade {

// Query heads of this item; the last block of a group may be short.
template <class C>
__device__ __forceinline__ int num_rows(const WorkItem& item) {
  return min(C::kGroup - item.head_block * 16, C::kRows);
}

template <class C>
__device__ __forceinline__ int query_head(const WorkItem& item, int row) {
  return item.kv_head * C::kGroup + item.head_block * 16 + row;
}

template <class C>
__device__ __forceinline__ const char* query_row(const DecodeParams& p, const WorkItem& item, int row) {
  return static_cast<const char*>(p.q) + item.request * p.q_row_stride + query_head<C>(item, row) * p.q_head_stride;
}

template <class T>
__device__ __forceinline__ void store_elements_4(char* row, int column, float4 x, bool aligned) {
  store_halves_4(row + column * 2, make_uint2(T::pack(x.x, x.y), T::pack(x.z, x.w)), aligned);
}
template <>
__device__ __forceinline__ void store_elements_4<F32>(char* row, int column, float4 x, bool aligned) {
  float* dst = reinterpret_cast<float*>(row) + column;
  if (aligned) {
    *reinterpret_cast<float4*>(dst) = x;
  } else {
    dst[0] = x.x, dst[1] = x.y, dst[2] = x.z, dst[3] = x.w;
  }
}

template <class C>
__device__ __forceinline__ void store_output(const DecodeParams& p, const WorkItem& item, int row, int column, float4 x) {
  if (C::kSplit == SplitMode::kOff || item.splits == 1) {
    char* dst = static_cast<char*>(p.o) + item.request * p.o_row_stride + query_head<C>(item, row) * p.o_head_stride;
    store_elements_4<typename C::T>(dst, column, x, p.o_aligned);
  } else {
    const int64_t slot = static_cast<int64_t>(blockIdx.x) * C::kRows + row;
    *reinterpret_cast<float4*>(p.partial_o + slot * C::kHeadDim + column) = x;
  }
}

template <class C>
__device__ __forceinline__ void store_lse(const DecodeParams& p, const WorkItem& item, int row, float lse) {
  if (C::kSplit == SplitMode::kOff || item.splits == 1) {
    if constexpr (C::kReturnLse) p.lse[static_cast<int64_t>(item.request) * p.heads + query_head<C>(item, row)] = lse;
  } else {
    p.partial_lse[static_cast<int64_t>(blockIdx.x) * C::kRows + row] = lse;
  }
}

}  // namespace opfacade
