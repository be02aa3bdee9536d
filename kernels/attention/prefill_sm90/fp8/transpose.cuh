// For fp8 products, V arrives key-major, and two warps of warpgroup 0 transpose it into operand tiles. These warps read every
// byte, so they also handle masked tiles: they set slots outside the range to zero and report NaN inside it.
#pragma once
#include "kernels/attention/prefill_sm90/tma_load.cuh"
#include "kernels/tile/transpose_bytes.cuh"

namespace opfacade {

// Sets bit 7 of each byte that is NaN; e4m3 has no infinities.
__device__ __forceinline__ uint32_t nan_bytes(uint32_t word) { return ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; }
__device__ __forceinline__ uint32_t bytes_mask(uint32_t flags) { return (flags >> 7) * 0xffu; }

// The mask of the four keys of this thread's word (transpose_bytes.cuh) that are inside a range. first: the position of the
// first key.
__device__ __forceinline__ uint32_t keys_inside(int first, KvRange inside) {
  uint32_t flags = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = first + row_column(i);
    if (key >= inside.begin && key < inside.end) flags |= 0x80u << 8 * i;
  }
  return bytes_mask(flags);
}

// One warp transposes half of a masked tile. Returns true if a visible value is NaN.
template <class C>
__device__ __forceinline__ bool transpose_masked(uint32_t from, uint32_t to, int first, KvRange inside) {
  uint32_t found = 0;
#pragma unroll 1
  for (int keys = first; keys < first + C::kTileKv / kTileWarps<C>; keys += 32) {
    const int mine = keys + lane_column();
    const uint32_t kept[2] = {keys_inside(mine, inside), keys_inside(mine + 16, inside)};
#pragma unroll 1
    for (int columns = 0; columns < C::kHeadDim; columns += 16) {
      uint32_t w[4];
      load_transposed(w, from, keys, columns);
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] &= kept[i / 2], found |= nan_bytes(w[i]);
      store_transposed(w, to, keys, columns);
    }
  }
  return found != 0;
}

// One warp transposes half of an unmasked tile. It issues loads kAhead steps before the stores, because a load takes longest
// and two warps hide little latency.
template <class C>
__device__ __forceinline__ void transpose_half(uint32_t from, uint32_t to, int first) {
  constexpr int kAhead = 2, kAcross = C::kHeadDim / 16, kSteps = C::kTileKv / kTileWarps<C> / 32 * kAcross;
  uint32_t w[kAhead + 1][4];
#pragma unroll
  for (int i = -kAhead; i < kSteps; ++i) {
    const int next = i + kAhead;
    if (next < kSteps) load_transposed(w[next % (kAhead + 1)], from, first + next / kAcross * 32, next % kAcross * 16);
    if (i >= 0) store_transposed(w[i % (kAhead + 1)], to, first + i / kAcross * 32, i % kAcross * 16);
  }
}

template <class C>
__device__ __forceinline__ void transpose_values(const WgmmaPrefillParams& p, WgmmaShared<C>& smem) {
  const int first = (threadIdx.x / 32 - (4 - kTileWarps<C>)) * (C::kTileKv / kTileWarps<C>);
  uint32_t read_from = read_place(0), write_to = write_place(0);
  asm volatile("" : "+r"(read_from), "+r"(write_to));  // otherwise they are recomputed for each tile
  WorkQueue<C> queue(smem);
  NonfiniteReport<C> nonfinite{smem};
  Ring<C::Tile::kRawStages> raw_v;
  Ring<C::kStages> ring;
  for (;;) {
    const Work& work = queue.peek();
    if (work.tile.rows == 0) break;
    const MaskedTiles masked = work.masked;
    int left = work.tiles, start = work.last;
#pragma unroll 1
    for (; left > 0; --left, start -= C::kTileKv, ring.advance(), raw_v.advance()) {
      raw_v.wait_full(smem.raw_v.full);
      ring.wait_empty(smem.v_empty);
      const uint32_t from = smem_address(smem.raw_v.v[raw_v.stage]) + read_from;
      const uint32_t to = smem_address(smem.v[ring.stage]) + write_to;
      if (masked(start)) {
        const KvRange inside{work.range.begin - start, work.range.end - start};
        nonfinite.publish(ring.stage, transpose_masked<C>(from, to, first, inside));
      } else {
        transpose_half<C>(from, to, first);
      }
      fence_async_shared();
      warp_arrive(smem.v_full[ring.stage]);
      warp_arrive(smem.raw_v.empty[raw_v.stage]);
    }
    queue.release();
  }
}

}  // namespace opfacade
