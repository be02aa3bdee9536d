// Translation of (request, token) to pool addresses. All offsets are 64-bit.
#pragma once
#include "kernels/paged/paged_kv.h"

namespace opfacade {

// Lengths and indptr entries are clamped, when they are read, to the tensors that they index: a wrong entry gives a wrong
// result, but no access out of bounds. Only bench/clamp.py disables the clamping, to measure its cost.
#ifdef OPF_TRUSTED_INDICES
constexpr bool kClampsIndices = false;
#else
constexpr bool kClampsIndices = true;
#endif

// Clamps a value of an index tensor to [low, high].
__device__ __forceinline__ int clamped(int value, int low, int high) {
  return kClampsIndices ? min(max(value, low), high) : value;
}

// The entries [first, stop) of one request.
struct IndexSpan {
  int first;
  int stop;
  __device__ __forceinline__ int count() const { return stop - first; }
};

__device__ __forceinline__ IndexSpan clamped_span(const int32_t* indptr, int request, int limit) {
  const int first = clamped(indptr[request], 0, limit);
  return {first, clamped(indptr[request + 1], first, limit)};
}

// Loads the last page's length unconditionally, together with indptr; the asm keeps the compiler from sinking the load.
__device__ __forceinline__ int last_page_len(const PageTable& table, int request) {
  int last = table.lens[request];
  asm volatile("" : "+r"(last));
  return last;
}

template <TableForm kForm>
__device__ __forceinline__ int kv_length(const PageTable& table, int request) {
  if constexpr (kForm == TableForm::kBlock) {
    return clamped(table.lens[request], 0, table.limit);
  } else if constexpr (kForm == TableForm::kRagged) {
    return clamped_span(table.indptr, request, table.limit).count();
  } else {
    const int last = last_page_len(table, request), pages = clamped_span(table.indptr, request, table.limit).count();
    if constexpr (!kClampsIndices) return pages <= 0 ? 0 : (pages - 1) * table.page_size + last;
    // Branch-free, so that a thread that reads many requests has the loads of all of them in flight together.
    const int length = max((pages - 1) * table.page_size + clamped(last, 0, table.page_size), 0);
    return length & ~(last >> 31);  // 0 for a negative last page, by which validation marks a request
  }
}

// The length for a writer, which must not clamp: -1 if the entries of the request are invalid.
template <TableForm kForm>
__device__ __forceinline__ int valid_kv_length(const PageTable& table, int request) {
  static_assert(kForm != TableForm::kRagged, "a ragged tensor is not written");
  if constexpr (!kClampsIndices) return kv_length<kForm>(table, request);
  if constexpr (kForm == TableForm::kBlock) {
    const int length = table.lens[request];
    return length <= table.limit ? length : -1;
  } else {
    const int last = last_page_len(table, request), first = table.indptr[request], stop = table.indptr[request + 1];
    const bool valid = (first >= 0) & (first < stop) & (stop <= table.limit) & (last > 0) & (last <= table.page_size);
    return valid ? (stop - first - 1) * table.page_size + last : -1;
  }
}

// Pages of one request; entries past its length are never read. kSafePages: an id outside the pool reads page 0, so a wrong id
// gives a wrong result, never an access outside the pool.
template <TableForm kForm, bool kPow2Pages, bool kSafePages = false>
struct RequestPages {
  const int32_t* pages;  // unused if ragged
  int first_row;         // used only if ragged
  int page_size;
  int page_shift;
  int num_pages;

  __device__ __forceinline__ RequestPages(const PageTable& table, int request) {
    page_size = table.page_size;
    page_shift = table.page_shift;
    num_pages = table.num_pages;
    pages = table.indices;
    first_row = 0;
    if constexpr (kForm == TableForm::kRagged) first_row = clamped(table.indptr[request], 0, table.limit);
    if constexpr (kForm == TableForm::kCsr) pages += clamped(table.indptr[request], 0, table.limit);
    if constexpr (kForm == TableForm::kBlock) pages += request * table.row_stride;
  }

  // Uses `pages`, which were looked up before; not for ragged tensors.
  __device__ __forceinline__ RequestPages(const PageTable& table, const int32_t* pages)
      : pages(pages), first_row(0), page_size(table.page_size), page_shift(table.page_shift), num_pages(table.num_pages) {
    static_assert(kForm != TableForm::kRagged, "a ragged request has a first row and no pages");
  }

  __device__ __forceinline__ int page_of(int token) const { return checked(entry_of(token)); }
  // The lookup in two steps, so that the entry's load can overlap other work.
  __device__ __forceinline__ int entry_of(int token) const {
    if constexpr (kForm == TableForm::kRagged) return 0;
    return pages[kPow2Pages ? token >> page_shift : token / page_size];
  }
  __device__ __forceinline__ bool is_page(int entry) const {
    return !kSafePages || static_cast<unsigned>(entry) < static_cast<unsigned>(num_pages);
  }
  // Must be used only for reads.
  __device__ __forceinline__ int checked(int entry) const {
    if constexpr (kForm == TableForm::kRagged) return 0;
    return is_page(entry) ? entry : 0;
  }
  __device__ __forceinline__ int slot_of(int token) const {
    if constexpr (kForm == TableForm::kRagged) return first_row + token;
    return kPow2Pages ? token & (page_size - 1) : token % page_size;
  }
};

__device__ __forceinline__ const char* token_address(const PoolTensor& pool, int page, int slot, int head) {
  return static_cast<const char*>(pool.data) + page * pool.page_stride + slot * pool.token_stride +
         head * pool.head_stride;
}

}  // namespace opfacade
