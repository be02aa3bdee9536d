// The cp.async pipeline of one warp: kStages stages of kTokens tokens of K and V. The pipeline continues from one item into the
// next. Each lane resolves the row address of one token (with 16-bit elements, half of the lanes for K and half for V), and the
// other lanes get the address by shuffle. The page index of the next tile or item is loaded one step early, so that no copy
// waits for an index.
#pragma once
#include "kernels/attention/decode/output.cuh"
#include "kernels/tile/swizzle.cuh"

namespace opfacade {

template <class C>
struct WarpLoader {
  static constexpr int kTokens = 32 / C::kKvBytes;
  static constexpr int kChunks = C::kHeadDim * C::kKvBytes / 16;
  static constexpr int kTileBytes = 32 * C::kHeadDim;  // bytes of K, or of V, in one stage
  static constexpr int kRowStep = 32 / kChunks;        // rows that a warp copies with one instruction
  using Pages = RequestPages<C::kTable, C::kPow2Pages, C::kSafePages>;

  const DecodeParams& p;
  uint32_t stages;     // shared address of this warp's first stage
  const int32_t* pages;
  int head;            // kv head of the item
  int first_key, end;
  int next;            // first token of the next tile to fetch
  int next_page;       // page of this lane's token in that tile
  int index = 0;       // stage to fill next, which is the oldest one; after a fetch, the stage to compute
  unsigned filled = 0; // bit i is set if the (i + 1)-th last fetch loaded a tile

  __device__ __forceinline__ WarpLoader(const DecodeParams& p, uint32_t shared)
      : p(p), stages(shared + threadIdx.x / 32 * C::kStages * 2 * kTileBytes) {}

  // The fields of an item that are loaded from global memory.
  struct Opening {
    const int32_t* pages;
    int page;
  };

  __device__ __forceinline__ Opening opening(const WorkItem& item) const {
    const int token = first_tile(item) + threadIdx.x % kTokens;
    const Pages lookup(p.table, item.request);
    return {lookup.pages, token >= item.first_key && token < item.end ? lookup.page_of(token) : 0};
  }

  __device__ __forceinline__ void open(const WorkItem& item, const Opening& opening) {
    pages = opening.pages;
    head = kv_head<C>(item);
    first_key = item.first_key;
    end = item.end;
    next = first_tile(item);
    next_page = opening.page;
  }

  static __device__ __forceinline__ int first_tile(const WorkItem& item) { return item.begin + threadIdx.x / 32 * kTokens; }
  __device__ __forceinline__ bool exhausted() const { return next >= end; }
  __device__ __forceinline__ int token() const { return next + threadIdx.x % kTokens; }
  __device__ __forceinline__ bool visible() const { return token() >= first_key && token() < end; }
  __device__ __forceinline__ int page() const { return visible() ? lookup().page_of(token()) : 0; }
  __device__ __forceinline__ Pages lookup() const { return Pages(p.table, pages); }
  __device__ __forceinline__ uint32_t stage(int i) const { return stages + i * 2 * kTileBytes; }
  // The stage that contains no needed data between the computation of a tile and the next fetch.
  __device__ __forceinline__ uint32_t free_stage() const { return stage(index); }

  __device__ __forceinline__ bool oldest_is_filled() const { return filled >> (C::kStages - 2) & 1; }

  // Fetches the next tile of the item, if there is one, and fills invisible tokens with zeros. Commits exactly one cp.async
  // group.
  __device__ __forceinline__ void fetch() {
    filled = filled << 1 | !exhausted();
    if (!exhausted()) {
      const unsigned shown = __ballot_sync(0xffffffffu, visible());
      if constexpr (C::kKvBytes == 2) {
        // Rows 0-15 of the stage are K, and rows 16-31 are V.
        copy(stage(index), address_in(threadIdx.x % 32 < kTokens ? p.k : p.v), shown);
      } else {
        copy(stage(index), address_in(p.k), shown);
        copy(stage(index) + kTileBytes, address_in(p.v), shown);
      }
      next += C::kWarps * kTokens;
      next_page = page();
    }
    cp_async_commit();
    index = index == C::kStages - 1 ? 0 : index + 1;
  }

  // The address of this lane's token in `pool`. An invisible token may have any address.
  __device__ __forceinline__ const char* address_in(const PoolTensor& pool) const {
    return visible() ? token_address(pool, next_page, lookup().slot_of(token()), head) : static_cast<const char*>(pool.data);
  }

  // Copies 32 rows; lane i has the address of row i.
  __device__ __forceinline__ void copy(uint32_t dst, const char* address, unsigned shown) const {
    const int lane = threadIdx.x % 32, first = lane / kChunks, chunk = lane % kChunks;
    if (p.kv_aligned) {
#pragma unroll
      for (int i = 0; i < 32 / kRowStep; ++i) copy_row<true>(dst, address, shown, first + i * kRowStep, chunk);
    } else {
#pragma unroll 1
      for (int i = 0; i < 32 / kRowStep; ++i) copy_row<false>(dst, address, shown, first + i * kRowStep, chunk);
    }
  }

  template <bool kAligned>
  __device__ __forceinline__ void copy_row(uint32_t dst, const char* address, unsigned shown, int row, int chunk) const {
    const auto bits = reinterpret_cast<unsigned long long>(address);
    const char* src = reinterpret_cast<const char*>(__shfl_sync(0xffffffffu, bits, row)) + chunk * 16;
    fetch_chunk<typename C::KvBits>(dst + swizzled<kChunks>(row, chunk), src, shown >> row & 1, kAligned);
  }
};

}  // namespace opfacade
