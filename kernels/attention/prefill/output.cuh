// Writes the results of a CTA: final rows through shared memory in 16-byte chunks, or the f32 partials of one split.
#pragma once
#include "kernels/attention/prefill/math.cuh"
#include "kernels/attention/prefill/finish.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ int64_t lse_index(const PrefillParams& p, const RowTile& tile, int row) {
  return packed_offset<C>(tile, row, p.heads, 1);
}

// Completes a row of a tile from the sum of its quad.
template <class C>
__device__ __forceinline__ Sunk finished_row(const PrefillParams& p, const PrefillSmem<C>& smem, const RowState<C>& state,
                                             int block, int half) {
  const int head = blockIdx.y * C::kGroup + (smem.tile.first + tile_row<C>(block, half)) % C::kGroup;
  const float scale = p.score.scale * softmax_factor<C>(smem, block, half);
  return finished<C>(p, head, row_lse(state.max[block][half], state.sum[block][half], scale));
}

// Adds the sums of rows over quads and normalises the output.
template <class C>
__device__ __forceinline__ void normalise(const PrefillParams& p, const PrefillSmem<C>& smem, RowState<C>& state) {
#pragma unroll
  for (int b = 0; b < RowState<C>::kRowBlocks; ++b)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.sum[b][half] = quad_sum(state.sum[b][half]);
      const Sunk sunk = finished_row<C>(p, smem, state, b, half);
      const float factor = reciprocal_or_zero(state.sum[b][half]) * sunk.factor * value_factor<C>(p, blockIdx.y);
#pragma unroll
      for (int n = 0; n < RowState<C>::kDimBlocks; ++n) {
        state.o[b][n][half * 2] *= factor;
        state.o[b][n][half * 2 + 1] *= factor;
      }
    }
}

template <class C>
__device__ __forceinline__ void write_lse(const PrefillParams& p, const PrefillSmem<C>& smem, const RowState<C>& state,
                                          float* lse) {
  const RowTile& tile = smem.tile;
  if (threadIdx.x % 4 != 0) return;
#pragma unroll
  for (int b = 0; b < RowState<C>::kRowBlocks; ++b)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row<C>(b, half);
      if (row < tile.rows)
        lse[lse_index<C>(p, tile, row)] = finished_row<C>(p, smem, state, b, half).lse;
    }
}

// A warp stages its output rows in its own rows of Q, which only this warp has read.
template <class C>
__device__ __forceinline__ void write_rows(const PrefillParams& p, const RowTile& tile, PrefillSmem<C>& smem,
                                           const RowState<C>& state) {
  constexpr int kChunks = C::kHeadDim / 8;
  constexpr int kWarpRows = RowState<C>::kRowBlocks * 16;
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int b = 0; b < RowState<C>::kRowBlocks; ++b)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < RowState<C>::kDimBlocks; ++n)
        *reinterpret_cast<uint32_t*>(smem.q + swizzled<kChunks>(tile_row<C>(b, half), n) + lane % 4 * 4) =
            C::Q::pack(state.o[b][n][half * 2], state.o[b][n][half * 2 + 1]);
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < kWarpRows * kChunks; i += 32) {
    const int row = threadIdx.x / 32 * kWarpRows + i / kChunks, chunk = i % kChunks;
    if (row >= tile.rows) break;
    char* dst = static_cast<char*>(p.o) + packed_offset<C>(tile, row, p.o_row_stride, p.o_head_stride) + chunk * 16;
    store_halves_8(dst, *reinterpret_cast<const uint4*>(smem.q + swizzled<kChunks>(row, chunk)), p.o_aligned);
  }
}

template <class C>
__device__ __forceinline__ void write_partials(const PrefillParams& p, const PrefillSmem<C>& smem, const RowState<C>& state) {
  const RowTile& tile = smem.tile;
  const int64_t split_rows = static_cast<int64_t>(blockIdx.z) * p.total_rows * p.heads;
  write_lse<C>(p, smem, state, p.partial_lse + split_rows);
#pragma unroll
  for (int b = 0; b < RowState<C>::kRowBlocks; ++b)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row<C>(b, half);
      if (row >= tile.rows || state.sum[b][half] == 0.f) continue;
      float* dst = p.partial_o + (split_rows + lse_index<C>(p, tile, row)) * C::kHeadDim + threadIdx.x % 4 * 2;
#pragma unroll
      for (int n = 0; n < RowState<C>::kDimBlocks; ++n)
        *reinterpret_cast<float2*>(dst + n * 8) = make_float2(state.o[b][n][half * 2], state.o[b][n][half * 2 + 1]);
    }
}

}  // namespace opfacade
