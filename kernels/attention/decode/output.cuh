// Addresses of query heads and of results. The result of an item is o and lse if the item is a whole work unit, otherwise f32
// partials in a workspace slot.
#pragma once
#include "kernels/attention/decode/schedule/chunks.cuh"
#include "kernels/attention/sink.cuh"
#include "kernels/common/chunk.cuh"
#include "kernels/ptx/dtype.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

// The number of query heads of this item; the last head block of a group may be shorter.
template <class C>
__device__ __forceinline__ int num_rows(const WorkItem& item) {
  return min(C::kGroup - item.head % C::kHeadBlocks * C::kBlockHeads, C::kRows);
}

template <class C>
__device__ __forceinline__ int kv_head(const WorkItem& item) {
  return item.head / C::kHeadBlocks;
}

template <class C>
__device__ __forceinline__ int query_head(const WorkItem& item, int row) {
  return kv_head<C>(item) * C::kGroup + item.head % C::kHeadBlocks * C::kBlockHeads + row;
}

// With C::kQueryRows > 1 (latent decode), the group of a kv head has kQueryRows x heads entries, ordered by query row, then by
// head.
template <class C>
__device__ __forceinline__ int own_head(const WorkItem& item, int row) {
  return C::kQueryRows == 1 ? query_head<C>(item, row) : query_head<C>(item, row) % (C::kGroup / C::kQueryRows);
}
// The offset of a row in a tensor [rows, heads, columns].
template <class C>
__device__ __forceinline__ int64_t row_offset(const WorkItem& item, int row, int64_t row_stride, int64_t head_stride) {
  if constexpr (C::kQueryRows == 1) return item.request * row_stride + query_head<C>(item, row) * head_stride;
  const int query_row = query_head<C>(item, row) / (C::kGroup / C::kQueryRows);
  return (static_cast<int64_t>(item.request) * C::kQueryRows + query_row) * row_stride + own_head<C>(item, row) * head_stride;
}

template <class C>
__device__ __forceinline__ const char* query_row(const DecodeParams& p, const WorkItem& item, int row) {
  return static_cast<const char*>(p.q) + row_offset<C>(item, row, p.q_row_stride, p.q_head_stride);
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
__device__ __forceinline__ void write_o(const DecodeParams& p, const WorkItem& item, int row, int column, float4 x) {
  char* dst = static_cast<char*>(p.o) + row_offset<C>(item, row, p.o_row_stride, p.o_head_stride);
  store_elements_4<typename C::T>(dst, column, x, p.o_aligned);
}

template <class C>
__device__ __forceinline__ void write_lse(const DecodeParams& p, const WorkItem& item, int row, float lse) {
  if constexpr (C::kReturnLse) p.lse[static_cast<int64_t>(item.request) * p.heads + query_head<C>(item, row)] = lse;
}

template <class C>
__device__ __forceinline__ float value_factor(const DecodeParams& p, const WorkItem& item) {
  if constexpr (C::kKvBytes != 1) return 1.f;
  return p.v_scale == nullptr ? 1.f : p.v_scale[kv_head<C>(item) * p.kv_scale_stride];
}

template <class C>
__device__ __forceinline__ Sunk with_sink(const DecodeParams& p, const WorkItem& item, int row, float lse) {
  if constexpr (!C::kSinks) return {lse, 1.f};
  return with_sink(p.sinks[own_head<C>(item, row)], lse);
}

// Writes four columns of a row whose lse is known; the thread with column 0 also writes the lse.
template <class C>
__device__ __forceinline__ void write_columns(const DecodeParams& p, const WorkItem& item, int row, int column, float4 o,
                                              float factor, float lse) {
  const Sunk sunk = with_sink<C>(p, item, row, lse);
  factor *= sunk.factor;
  write_o<C>(p, item, row, column, make_float4(o.x * factor, o.y * factor, o.z * factor, o.w * factor));
  if (column == 0) write_lse<C>(p, item, row, sunk.lse);
}

// The destination of the finished rows of an item: the output if the work unit consists of this item, otherwise the workspace
// slot of the item.
template <class C>
struct GlobalRows {
  const DecodeParams& p;
  const WorkItem& item;
  const Partials& partials;

  __device__ __forceinline__ bool is_unsplit() const { return !C::kPartial || partials.count == 1; }
  __device__ __forceinline__ int64_t slot_row(int partial, int row) const {
    return static_cast<int64_t>(partials.slot(partial)) * C::kRows + row;
  }
  __device__ __forceinline__ void store(int row, int column, float4 o, float factor, float lse) const {
    if (is_unsplit()) return write_columns<C>(p, item, row, column, o, factor, lse);
    const int64_t at = slot_row(partials.index, row);
    const uint4 words = make_uint4(__float_as_uint(o.x * factor), __float_as_uint(o.y * factor), __float_as_uint(o.z * factor),
                                   __float_as_uint(o.w * factor));
    // The compiler would split an assignment into four scalar stores.
    store_words_4(reinterpret_cast<char*>(p.partial_o + at * C::kHeadDim + column), words, true);
    if (column == 0) store_lse(row, lse);
  }
  __device__ __forceinline__ void store_lse(int row, float lse) const { p.partial_lse[slot_row(partials.index, row)] = lse; }
};

}  // namespace opfacade
