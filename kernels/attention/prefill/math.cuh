// Tensor-core products of one tile of keys. A warp has kRowBlocks blocks of 16 rows, so that each loaded fragment of K or V is
// used in that many products.
#pragma once
#include "kernels/attention/prefill/load.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/common/softmax.cuh"

namespace opfacade {

template <class C>
struct RowState {
  static constexpr int kRowBlocks = C::kTileRows / (C::kWarps * 16);
  static constexpr int kDimBlocks = C::kHeadDim / 8;
  static constexpr int kKeyBlocks = C::kTileKv / 8;
  float o[kRowBlocks][kDimBlocks][4];
  float max[kRowBlocks][2];
  float sum[kRowBlocks][2];  // the sum of this thread's weights

  __device__ __forceinline__ RowState() {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      max[b][0] = max[b][1] = minus_infinity();
      sum[b][0] = sum[b][1] = 0.f;
#pragma unroll
      for (int n = 0; n < kDimBlocks; ++n) o[b][n][0] = o[b][n][1] = o[b][n][2] = o[b][n][3] = 0.f;
    }
  }
};

template <class C>
using Scores = float[RowState<C>::kRowBlocks][RowState<C>::kKeyBlocks][4];

// The tile row of accumulator elements 2 * half and 2 * half + 1 of row block `block`.
template <class C>
__device__ __forceinline__ int tile_row(int block, int half) {
  return (threadIdx.x / 32 * RowState<C>::kRowBlocks + block) * 16 + half * 8 + threadIdx.x % 32 / 4;
}

// The factor of a product of q and k; 1 if both are stored without a factor.
template <class C>
__device__ __forceinline__ float score_factor(const PrefillSmem<C>& smem, int block, int half) {
  if constexpr (C::kKvBytes != 1) return 1.f;
  else return smem.raw.factor[tile_row<C>(block, half)];
}
// The factor of a score in the softmax; if there is a soft cap, it has already applied the score factor.
template <class C>
__device__ __forceinline__ float softmax_factor(const PrefillSmem<C>& smem, int block, int half) {
  return C::kSoftCap ? 1.f : score_factor<C>(smem, block, half);
}

template <class C>
__device__ __forceinline__ void compute_scores(const PrefillSmem<C>& smem, Scores<C>& s) {
  using State = RowState<C>;
  constexpr int kChunks = C::kHeadDim / 8;
  constexpr int kBlockBytes = 16 * PrefillSmem<C>::kRowBytes;
  const int lane = threadIdx.x % 32;
  const uint32_t q = smem_address(smem.q) + threadIdx.x / 32 * State::kRowBlocks * kBlockBytes +
                     swizzled<kChunks>(lane % 16, lane / 16);
  const uint32_t k = smem_address(smem.k) + swizzled<kChunks>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int b = 0; b < State::kRowBlocks; ++b)
#pragma unroll
    for (int n = 0; n < State::kKeyBlocks; ++n) s[b][n][0] = s[b][n][1] = s[b][n][2] = s[b][n][3] = 0.f;
#pragma unroll
  for (int step = 0; step < C::kHeadDim / 16; ++step) {
    uint32_t a[State::kRowBlocks][4];
#pragma unroll
    for (int b = 0; b < State::kRowBlocks; ++b) ldmatrix_x4(a[b], (q ^ (step * 32)) + b * kBlockBytes);
#pragma unroll
    for (int n = 0; n < State::kKeyBlocks / 2; ++n) {
      uint32_t key[4];
      ldmatrix_x4(key, (k ^ (step * 32)) + n * kBlockBytes);
#pragma unroll
      for (int b = 0; b < State::kRowBlocks; ++b) {
        mma_16x8x16<typename C::T>(s[b][2 * n], a[b], key[0], key[1]);
        mma_16x8x16<typename C::T>(s[b][2 * n + 1], a[b], key[2], key[3]);
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void soft_cap(const PrefillSmem<C>& smem, Scores<C>& s, float cap_in) {
#pragma unroll
  for (int b = 0; b < RowState<C>::kRowBlocks; ++b)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = cap_in * score_factor<C>(smem, b, half);
#pragma unroll
      for (int n = 0; n < RowState<C>::kKeyBlocks; ++n)
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) s[b][n][i] = tanhf(s[b][n][i] * factor);
    }
}

// Applies the logits expression. `table` contains the parameters of the keys of this tile.
template <class C>
__device__ __forceinline__ void vary_scores(const PrefillParams& p, const RowTile& tile, const int32_t* table, int start,
                                            Scores<C>& s) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int b = 0; b < RowState<C>::kRowBlocks; ++b)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = variant_row<C>(p, tile, blockIdx.y, tile_row<C>(b, half));
#pragma unroll
      for (int n = 0; n < RowState<C>::kKeyBlocks; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = s[b][n][half * 2 + i];
          score = Variant<C>::logits(score * p.score.cap_in, row, variant_key<C>(table, start, column, n * 8 + i));
        }
    }
}

template <class C>
__device__ __forceinline__ void mask_scores(const PrefillParams& p, const RowTile& tile, const KvRange& range, int start,
                                            Scores<C>& s) {
  const int column = start + threadIdx.x % 4 * 2;
#pragma unroll
  for (int b = 0; b < RowState<C>::kRowBlocks; ++b)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KvRange seen = row_range<C>(p, tile, range, tile_row<C>(b, half));
#pragma unroll
      for (int n = 0; n < RowState<C>::kKeyBlocks; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = column + n * 8 + i;
          if (key < seen.begin || key >= seen.end) s[b][n][half * 2 + i] = minus_infinity();
        }
    }
}

// The mask of this thread's visible elements of a tile: bit half * 16 + n * 2 + i of a row block.
template <class C>
using Shown = uint32_t[RowState<C>::kRowBlocks];

// Needed if keys are hidden by more than a range. Runs before the scores are computed, one row at a time, to save registers.
template <class C>
__device__ __forceinline__ void find_shown(const PrefillParams& p, const RowTile& tile, const KvRange& range,
                                           const int32_t* table, int start, Shown<C>& shown) {
  static_assert(RowState<C>::kKeyBlocks == 8 && RowState<C>::kRowBlocks <= 2, "16 bits are the elements of a row");
  uint64_t all = 0;
#pragma unroll 1
  for (int r = RowState<C>::kRowBlocks * 2 - 1; r >= 0; --r)
    all = all << 16 | shown_elements<C>(p, tile, range, blockIdx.y, tile_row<C>(r / 2, r % 2), table, start);
#pragma unroll
  for (int b = 0; b < RowState<C>::kRowBlocks; ++b) shown[b] = static_cast<uint32_t>(all >> b * 32);
}

template <class C>
__device__ __forceinline__ void hide_scores(const Shown<C>& shown, Scores<C>& s) {
#pragma unroll
  for (int b = 0; b < RowState<C>::kRowBlocks; ++b)
#pragma unroll
    for (int n = 0; n < RowState<C>::kKeyBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if ((shown[b] >> (i / 2 * 16 + n * 2 + i % 2) & 1) == 0) s[b][n][i] = minus_infinity();
}

// Converts scores to weights and rescales the state to the new maximum. If no key of the tile is visible for a row, max - new
// max is exactly 0, so the bits of the row do not change.
template <class C>
__device__ __forceinline__ void update_softmax(const PrefillSmem<C>& smem, RowState<C>& state, Scores<C>& s,
                                               float log2_scale) {
#pragma unroll
  for (int b = 0; b < RowState<C>::kRowBlocks; ++b)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float exponent = log2_scale * softmax_factor<C>(smem, b, half);
      float row_max = state.max[b][half];
#pragma unroll
      for (int n = 0; n < RowState<C>::kKeyBlocks; ++n)
        row_max = fmaxf(row_max, fmaxf(s[b][n][half * 2], s[b][n][half * 2 + 1]));
      row_max = quad_max(row_max);
      const float base = finite_max(row_max);
      const float rescale = exp2_approx((state.max[b][half] - base) * exponent);
      state.max[b][half] = row_max;
      float sum = state.sum[b][half] * rescale;
#pragma unroll
      for (int n = 0; n < RowState<C>::kKeyBlocks; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = s[b][n][half * 2 + i];
          score = exp2_approx(fmaf(score, exponent, -base * exponent));
          sum += score;
        }
      state.sum[b][half] = sum;
#pragma unroll
      for (int n = 0; n < RowState<C>::kDimBlocks; ++n) {
        state.o[b][n][half * 2] *= rescale;
        state.o[b][n][half * 2 + 1] *= rescale;
      }
    }
}

template <class C>
__device__ __forceinline__ void add_values(const PrefillSmem<C>& smem, const Scores<C>& s, RowState<C>& state) {
  using State = RowState<C>;
  using T = typename C::T;
  constexpr int kChunks = C::kHeadDim / 8;
  const int lane = threadIdx.x % 32;
  const uint32_t v = smem_address(smem.v) + swizzled<kChunks>(lane % 16, lane / 16);
#pragma unroll
  for (int step = 0; step < C::kTileKv / 16; ++step) {
    uint32_t a[State::kRowBlocks][4];
#pragma unroll
    for (int b = 0; b < State::kRowBlocks; ++b) {
      a[b][0] = T::pack(s[b][2 * step][0], s[b][2 * step][1]);
      a[b][1] = T::pack(s[b][2 * step][2], s[b][2 * step][3]);
      a[b][2] = T::pack(s[b][2 * step + 1][0], s[b][2 * step + 1][1]);
      a[b][3] = T::pack(s[b][2 * step + 1][2], s[b][2 * step + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < State::kDimBlocks / 2; ++n) {
      uint32_t value[4];
      ldmatrix_x4_trans(value, (v ^ (n * 32)) + step * 16 * PrefillSmem<C>::kRowBytes);
#pragma unroll
      for (int b = 0; b < State::kRowBlocks; ++b) {
        mma_16x8x16<T>(state.o[b][2 * n], a[b], value[0], value[1]);
        mma_16x8x16<T>(state.o[b][2 * n + 1], a[b], value[2], value[3]);
      }
    }
  }
}

}  // namespace opfacade
