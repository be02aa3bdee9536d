// Scales of 8-bit operands, read where they lie.
#pragma once
#include "kernels/common/stored.cuh"
#include "kernels/matmul/matmul_params.h"

namespace opfacade {

// The scale of a row or column, and of one part of k where it has several.
template <class S>
__device__ __forceinline__ float scale_at(const MatmulScales& scales, int batch, int row, int part = 0) {
  const auto* from = static_cast<const typename Stored<S>::Bits*>(scales.data);
  return Stored<S>::load(from[batch * scales.batch + row * scales.row + part * scales.part]);
}

__device__ __forceinline__ uint32_t integer_at(const MatmulScales& of, int batch, int row) {
  return static_cast<const uint32_t*>(of.data)[batch * of.batch + row * of.row];
}

// A sum of i8, in its bits, as f32 without what the zero point of x added. Integers wrap, and the difference fits.
__device__ __forceinline__ float unshifted(float sum, uint32_t zero, uint32_t weight_sum) {
  return static_cast<float>(static_cast<int32_t>(__float_as_uint(sum) - zero * weight_sum));
}

// Which of kRanges scales a column of the product has.
template <int kRanges>
__device__ __forceinline__ int range_of(const MatmulParams& p, int column) {
  int range = 0;
#pragma unroll
  for (int i = 0; i + 1 < kRanges; ++i) range += column >= p.starts[i];
  return range;
}

// The factors of one part of 128 elements of k: of two rows eight apart, and of columns. The elements of one block of the weight
// end inside the part where the weight begins inside a block of k, and columns of a tile lie in two where it does so in n.
struct PartScales {
  float row[2], column[2][2];  // of the weight: [block of k][block of columns]
};

// A config S of blocks: X, Weight the types of scales; kCut, the first k-steps of a part that the next block does not have, 4
// where blocks of x and of the weight agree; kTwo, whether columns of a tile may lie in two blocks.
template <class C>
struct BlockScales {
  using S = typename C::Scales;
  const MatmulParams& p;
  int batch, row, rows, column;

  __device__ __forceinline__ PartScales at(int part) const {
    PartScales found;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool inside = row + 8 * half < rows && part * 128 < p.k;
      found.row[half] = inside ? scale_at<typename S::X>(p.x_scale, batch, row + 8 * half, part) : 0.f;
    }
#pragma unroll
    for (int next = 0; next < (S::kCut < 4 ? 2 : 1); ++next)
#pragma unroll
      for (int block = 0; block < (S::kTwo ? 2 : 1); ++block) {
        const int first = block == 0 ? column : next_block();
        const bool inside = first < p.columns && part * 128 + next * S::kCut * 32 < p.k;
        found.column[next][block] =
            inside ? scale_at<typename S::Weight>(p.weight_scale, batch, (first + p.offset_columns) / 128, part + next) : 0.f;
      }
    return found;
  }
  // The first column of the block behind that of the tile's first column.
  __device__ __forceinline__ int next_block() const { return ((column + p.offset_columns) / 128 + 1) * 128 - p.offset_columns; }
};

}  // namespace opfacade
