// What a warp of a decode holds: its query heads as a fragment, and the running softmax of 16 rows.
#pragma once
#include "kernels/attention/decode_load.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/softmax.cuh"

namespace opfacade {

template <class C>
struct DecodeState {
  static constexpr int kSteps = C::kHeadDim / 16;
  static constexpr int kDimBlocks = C::kHeadDim / 8;
  // Widening fp8 takes registers that a row of 256 dimensions does not leave.
  static constexpr bool kQueryInShared = C::kKvBytes == 1 && C::kHeadDim == 256;
  static constexpr int kQueryBytes = kQueryInShared ? kSteps * 512 : 0;  // of a warp

  uint32_t q[kQueryInShared ? 1 : kSteps][4];
  uint32_t q_at;  // shared address of this warp's fragments of q, if they are there
  float o[kDimBlocks][4];
  float max[2];
  float sum[2];     // this thread's part
  float factor[2];  // of a product of q and a stored key; 1 unless K is stored with factors
};

template <class C>
__device__ __forceinline__ void reset(DecodeState<C>& state) {
  state.max[0] = state.max[1] = minus_infinity();
  state.sum[0] = state.sum[1] = 0.f;
#pragma unroll
  for (int n = 0; n < DecodeState<C>::kDimBlocks; ++n) state.o[n][0] = state.o[n][1] = state.o[n][2] = state.o[n][3] = 0.f;
}

// Scores of 16 heads and a tile of tokens: eight tokens a block.
template <class C>
using TileScores = float[WarpLoader<C>::kTokens / 8][4];

// The products of a tile; one specialisation for each size of a stored element.
template <class C, int kBytes = C::kKvBytes>
struct TileMath;

template <class C>
__device__ __forceinline__ void cap_and_mask(const DecodeParams& p, const WorkItem& item, int start, TileScores<C>& s) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < WarpLoader<C>::kTokens / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = start + n * 8 + lane % 4 * 2 + i % 2;
      if constexpr (C::kSoftCap) s[n][i] = tanhf(s[n][i] * p.score.cap_in);
      if (key < item.first_key || key >= item.end) s[n][i] = minus_infinity();
    }
}

template <class C>
__device__ __forceinline__ void update_softmax(DecodeState<C>& state, TileScores<C>& s, float log2_scale) {
  constexpr int kBlocks = WarpLoader<C>::kTokens / 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float row_max = state.max[half];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) row_max = fmaxf(row_max, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
    row_max = quad_max(row_max);
    const float base = finite_max(row_max);
    const float rescale = exp2_approx((state.max[half] - base) * log2_scale);
    state.max[half] = row_max;
    state.sum[half] *= rescale;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = s[n][half * 2 + i];
        score = exp2_approx((score - base) * log2_scale);
        state.sum[half] += score;
      }
#pragma unroll
    for (int n = 0; n < DecodeState<C>::kDimBlocks; ++n) {
      state.o[n][half * 2] *= rescale;
      state.o[n][half * 2 + 1] *= rescale;
    }
  }
}

}  // namespace opfacade
