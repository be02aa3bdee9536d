// One warp's own pipeline of kStages stages of kWarpTile tokens of K and V. A lane resolves one row (lanes 0-15 K, 16-31
// V) and the others get its address by shuffle; the page index of the following tile is fetched before it is needed, so
// that waiting for an index never delays a copy.
#pragma once
#include "kernels/attention/decode_output.cuh"
#include "kernels/common/swizzle.cuh"

namespace opfacade {

constexpr int kWarpTile = 16;

template <class C>
struct WarpLoader {
  static constexpr int kChunks = C::kHeadDim / 8;
  static constexpr int kTileBytes = kWarpTile * C::kHeadDim * 2;  // K or V of a stage
  static constexpr int kRowStep = 32 / kChunks;                   // rows a warp copies at once

  const DecodeParams& p;
  const WorkItem& item;
  RequestPages<C::kTable, C::kPow2Pages, C::kSafePages> pages;
  uint32_t stages;   // shared address of this warp's first stage
  int next;          // first token of the tile to fetch next
  int next_page;     // page of this lane's token in that tile

  __device__ __forceinline__ WarpLoader(const DecodeParams& p, const WorkItem& item, uint32_t shared)
      : p(p), item(item), pages(p.table, item.request) {
    const int warp = threadIdx.x / 32;
    stages = shared + warp * C::kStages * 2 * kTileBytes;
    next = item.begin + warp * kWarpTile;
    next_page = page();
  }

  __device__ __forceinline__ int token() const { return next + threadIdx.x % kWarpTile; }
  __device__ __forceinline__ bool visible() const { return token() >= item.first_key && token() < item.end; }
  __device__ __forceinline__ int page() const { return visible() ? pages.page_of(token()) : 0; }
  __device__ __forceinline__ uint32_t stage(int index) const { return stages + index * 2 * kTileBytes; }

  // Fetches the next tile; what is not visible becomes zero. Past the end it only closes an empty group.
  __device__ __forceinline__ void fetch(int index) {
    if (next < item.end) {
      const int lane = threadIdx.x % 32;
      const PoolTensor& pool = lane < kWarpTile ? p.k : p.v;
      const char* address = static_cast<const char*>(pool.data);
      if (visible()) address = token_address(pool, next_page, pages.slot_of(token()), item.kv_head);
      const unsigned shown = __ballot_sync(0xffffffffu, visible());
      copy(stage(index), address, shown, lane / kChunks, lane % kChunks);
      next += C::kWarps * kWarpTile;
      next_page = page();
    }
    cp_async_commit();
  }

  __device__ __forceinline__ void copy(uint32_t dst, const char* address, unsigned shown, int first, int chunk) const {
    // Rows 0-15 are K, 16-31 are V, which lies right behind: one run of 32 rows.
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
    fetch_chunk<uint16_t>(dst + swizzled<kChunks>(row, chunk), src, shown >> row & 1, kAligned);
  }
};

}  // namespace opfacade
