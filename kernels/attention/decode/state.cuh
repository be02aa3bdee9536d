// The registers of a decode warp: query heads as an mma fragment, and the online softmax of two heads per thread.
#pragma once
#include "kernels/attention/decode/load.cuh"
#include "kernels/tile/column.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/movmatrix.cuh"
#include "kernels/common/softmax.cuh"

namespace opfacade {

// An mma tile has 16 rows and 8 columns. Up to eight heads are the columns of the tile, with keys (or dimensions of V) as its
// rows, which halves the padding; more than eight heads are the rows. A thread has four accumulators of a tile: two heads
// (which) at two keys or dimensions (j).
template <class C, bool kColumns = (C::kRows <= 8)>
struct HeadLayout {
  static constexpr bool kHeadsAreColumns = false;
  static constexpr int kLength = 8;     // keys or dimensions in a tile
  static constexpr int kQueryHeads = 2; // heads whose q one thread loads
  static __device__ __forceinline__ int head(int which) { return threadIdx.x % 32 / 4 + which * 8; }
  static __device__ __forceinline__ int along(int j) { return threadIdx.x % 4 * 2 + j; }
  static constexpr int at(int which, int j) { return which * 2 + j; }
  static __device__ __forceinline__ float max_of_head(float x) { return quad_max(x); }
  static __device__ __forceinline__ float sum_of_head(float x) { return quad_sum(x); }
};

template <class C>
struct HeadLayout<C, true> {
  static constexpr bool kHeadsAreColumns = true;
  static constexpr int kLength = 16;
  static constexpr int kQueryHeads = 1;
  static __device__ __forceinline__ int head(int which) { return threadIdx.x % 4 * 2 + which; }
  static __device__ __forceinline__ int along(int j) { return threadIdx.x % 32 / 4 + j * 8; }
  static constexpr int at(int which, int j) { return j * 2 + which; }
  static __device__ __forceinline__ float max_of_head(float x) { return column_max(x); }
  static __device__ __forceinline__ float sum_of_head(float x) { return column_sum(x); }
};

template <class C>
struct DecodeState {
  using Layout = HeadLayout<C>;
  static constexpr int kSteps = C::kHeadDim / 16;
  static constexpr int kDimBlocks = C::kHeadDim / Layout::kLength;
  // With head_dim 256 and heads as rows, the conversion of fp8 needs the registers of q.
  static constexpr bool kQueryInShared = C::kKvBytes == 1 && C::kHeadDim == 256 && !Layout::kHeadsAreColumns;
  static constexpr int kQueryBytes = kQueryInShared ? kSteps * 512 : 0;  // bytes per warp

  uint32_t q[kQueryInShared ? 1 : kSteps][2 * Layout::kQueryHeads];
  uint32_t q_at;  // the shared address of this warp's q fragments if kQueryInShared
  float o[kDimBlocks][4];
  float max[2];
  float sum[2];     // the sum of this thread's weights
  float factor[2];  // multiplies the product of q and a stored key; 1 without factors of K
};

template <class C>
__device__ __forceinline__ void reset(DecodeState<C>& state) {
  state.max[0] = state.max[1] = minus_infinity();
  state.sum[0] = state.sum[1] = 0.f;
#pragma unroll
  for (int n = 0; n < DecodeState<C>::kDimBlocks; ++n) state.o[n][0] = state.o[n][1] = state.o[n][2] = state.o[n][3] = 0.f;
}

template <class C>
using TileScores = float[WarpLoader<C>::kTokens / HeadLayout<C>::kLength][4];

// A row of a warp's o in shared memory. The XOR of the column places rows that are stored together in different banks.
template <class C>
struct ResultRow {
  float* row;
  int swizzle;

  __device__ __forceinline__ ResultRow(float* rows, int row) : row(rows + row * C::kHeadDim), swizzle((row % 8 ^ row % 8 / 4) * 8) {}
  template <class Columns>
  __device__ __forceinline__ Columns& at(int column) const {
    return *reinterpret_cast<Columns*>(row + (column ^ swizzle));
  }
};

// TileMath loads q and depends on the element size. TileProducts computes tile products and depends on element size and layout.
template <class C, int kBytes = C::kKvBytes>
struct TileMath;
template <class C, int kBytes, bool kHeadsAreColumns = HeadLayout<C>::kHeadsAreColumns>
struct TileProducts;

// The softmax weights of 16 keys as the A operand, with heads as rows.
template <class T>
__device__ __forceinline__ void weights_of_rows(const float (&low)[4], const float (&high)[4], uint32_t (&a)[4]) {
  a[0] = T::pack(low[0], low[1]), a[1] = T::pack(low[2], low[3]);
  a[2] = T::pack(high[0], high[1]), a[3] = T::pack(high[2], high[3]);
}
// The softmax weights as the B operand, with heads as columns: a register contains adjacent keys instead of adjacent heads.
template <class T>
__device__ __forceinline__ void weights_of_columns(const float (&s)[4], uint32_t (&b)[2]) {
  b[0] = transposed_8x8(T::pack(s[0], s[1]));
  b[1] = transposed_8x8(T::pack(s[2], s[3]));
}

template <class C>
__device__ __forceinline__ void cap_and_mask(const DecodeParams& p, const WorkItem& item, int start, TileScores<C>& s) {
  using Layout = HeadLayout<C>;
#pragma unroll
  for (int n = 0; n < WarpLoader<C>::kTokens / Layout::kLength; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = start + n * Layout::kLength + Layout::along(j);
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        float& score = s[n][Layout::at(which, j)];
        if constexpr (C::kSoftCap) score = tanhf(score * p.score.cap_in);
        if (key < item.first_key || key >= item.end) score = minus_infinity();
      }
    }
}

template <class C>
__device__ __forceinline__ void update_softmax(DecodeState<C>& state, TileScores<C>& s, float log2_scale) {
  using Layout = HeadLayout<C>;
  constexpr int kBlocks = WarpLoader<C>::kTokens / Layout::kLength;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    float head_max = state.max[which];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
      head_max = fmaxf(head_max, fmaxf(s[n][Layout::at(which, 0)], s[n][Layout::at(which, 1)]));
    head_max = Layout::max_of_head(head_max);
    const float base = finite_max(head_max);
    const float rescale = exp2_approx((state.max[which] - base) * log2_scale);
    state.max[which] = head_max;
    state.sum[which] *= rescale;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = s[n][Layout::at(which, j)];
        score = exp2_approx((score - base) * log2_scale);
        state.sum[which] += score;
      }
#pragma unroll
    for (int n = 0; n < DecodeState<C>::kDimBlocks; ++n) {
      state.o[n][Layout::at(which, 0)] *= rescale;
      state.o[n][Layout::at(which, 1)] *= rescale;
    }
  }
}

}  // namespace opfacade
