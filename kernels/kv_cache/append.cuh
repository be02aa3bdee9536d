// Appends new rows to the paged pool: a copy of bytes, whatever they mean. The page table already counts the new rows, so
// row i of n goes to position length - n + i. A warp finds its request by a 32-ary search and copies one row of one head.
#pragma once
#include "kernels/kv_cache/append_params.h"
#include "kernels/common/page_lookup.cuh"

namespace opfacade {

template <int kBytes>
struct Bits;
template <>
struct Bits<1> {
  using Type = uint8_t;
};
template <>
struct Bits<2> {
  using Type = uint16_t;
};
template <>
struct Bits<4> {
  using Type = uint32_t;
};

// The last request that starts at or before `row`: the one that has it, since empty ones before it start there too.
__device__ __forceinline__ int request_of(const AppendParams& p, int row) {
  int first = 0;
  for (int count = p.batch; count > 1;) {
    const int lane = threadIdx.x % 32, step = (count + 31) / 32;
    const bool starts = lane * step < count && p.append_indptr[first + lane * step] <= row;
    const int passed = max(__popc(__ballot_sync(0xffffffffu, starts)) - 1, 0) * step;
    first += passed;
    count = min(step, count - passed);
  }
  return first;
}

template <class T>
__device__ __forceinline__ void copy_row(char* dst, const char* src, int count) {
  for (int i = threadIdx.x % 32; i < count; i += 32) reinterpret_cast<T*>(dst)[i] = reinterpret_cast<const T*>(src)[i];
}

// Where this warp's new row comes from and goes.
struct NewPlace {
  int row;
  int position;
  int page;
  int slot;
};

template <class C>
__device__ __forceinline__ void append_row(const NewRows& rows, const PoolTensor& pool, bool aligned, const NewPlace& place) {
  const char* src = static_cast<const char*>(rows.data) + place.row * rows.row_stride + blockIdx.y * rows.head_stride;
  char* dst = const_cast<char*>(token_address(pool, place.page, place.slot, blockIdx.y));
  if (C::kHeadDim * C::kElemBytes % 16 == 0 && aligned) {
    copy_row<uint4>(dst, src, C::kHeadDim * C::kElemBytes / 16);
  } else {
    copy_row<typename Bits<C::kElemBytes>::Type>(dst, src, C::kHeadDim);
  }
}

// False if there is no such row.
template <class C>
__device__ __forceinline__ bool find_place(const AppendParams& p, NewPlace& place) {
  place.row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (place.row >= p.total_rows || place.row >= p.append_indptr[p.batch]) return false;
  const int request = request_of(p, place.row);
  place.position = kv_length<C::kTable>(p.table, request) - (p.append_indptr[request + 1] - place.row);
  if (place.position < 0) return false;
  const RequestPages<C::kTable, C::kPow2Pages, C::kSafePages> pages(p.table, request);
  place.page = pages.page_of(place.position);
  place.slot = pages.slot_of(place.position);
  return true;
}

template <class C>
__device__ __forceinline__ void append(const AppendParams& p) {
  NewPlace place;
  if (!find_place<C>(p, place)) return;
  append_row<C>(p.k_new, p.k, p.k_aligned, place);
  append_row<C>(p.v_new, p.v, p.v_aligned, place);
}

}  // namespace opfacade
