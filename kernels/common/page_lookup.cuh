// From (request, token) to addresses in the pool. All offsets are 64-bit.
#pragma once
#include "kernels/common/paged_kv.h"

namespace opfacade {

template <TableForm kForm>
__device__ __forceinline__ int kv_length(const PageTable& table, int request) {
  if constexpr (kForm == TableForm::kBlock) {
    return table.lens[request];
  } else if constexpr (kForm == TableForm::kRagged) {
    return table.indptr[request + 1] - table.indptr[request];
  } else {
    // Asked for before anybody knows whether there is a last page, and so beside the others: a compiler would move it down.
    int last = table.lens[request];
    asm volatile("" : "+r"(last));
    const int pages = table.indptr[request + 1] - table.indptr[request];
    return pages <= 0 ? 0 : (pages - 1) * table.page_size + last;
  }
}

// The pages of one request; entries past its length are never read. Safe pages: an id that is no page of the pool reads
// page 0, so that a wrong one leads to a wrong result and never outside the pool.
template <TableForm kForm, bool kPow2Pages, bool kSafePages = false>
struct RequestPages {
  const int32_t* pages;  // ragged: unused
  int first_row;         // ragged only
  int page_size;
  int page_shift;
  int num_pages;

  __device__ __forceinline__ RequestPages(const PageTable& table, int request) {
    page_size = table.page_size;
    page_shift = table.page_shift;
    num_pages = table.num_pages;
    pages = table.indices;
    first_row = 0;
    if constexpr (kForm == TableForm::kRagged) first_row = table.indptr[request];
    if constexpr (kForm == TableForm::kCsr) pages += table.indptr[request];
    if constexpr (kForm == TableForm::kBlock) pages += request * table.row_stride;
  }

  // The same from `pages` found before; not for ragged tensors.
  __device__ __forceinline__ RequestPages(const PageTable& table, const int32_t* pages)
      : pages(pages), first_row(0), page_size(table.page_size), page_shift(table.page_shift), num_pages(table.num_pages) {
    static_assert(kForm != TableForm::kRagged, "a ragged request has a first row and no pages");
  }

  __device__ __forceinline__ int page_of(int token) const { return checked(entry_of(token)); }
  // In two steps, so that nothing waits for an entry before it is needed.
  __device__ __forceinline__ int entry_of(int token) const {
    if constexpr (kForm == TableForm::kRagged) return 0;
    return pages[kPow2Pages ? token >> page_shift : token / page_size];
  }
  __device__ __forceinline__ int checked(int entry) const {
    if constexpr (kForm == TableForm::kRagged) return 0;
    return !kSafePages || static_cast<unsigned>(entry) < static_cast<unsigned>(num_pages) ? entry : 0;
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
