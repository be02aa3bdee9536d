// Scales of 8-bit operands, read from global memory.
#pragma once
#include "kernels/common/stored.cuh"
#include "kernels/matmul/tiles.cuh"

namespace opfacade {

// The scale of a row of x or a column of the product. part: index of a part of k, if scales have that axis.
template <class S>
__device__ __forceinline__ float scale_at(const MatmulScales& scales, int batch, int row, int part = 0) {
  const auto* from = static_cast<const typename Stored<S>::Bits*>(scales.data);
  return Stored<S>::load(from[batch * scales.batch + row * scales.row + part * scales.part]);
}

__device__ __forceinline__ uint32_t integer_at(const MatmulScales& of, int batch, int row) {
  return static_cast<const uint32_t*>(of.data)[batch * of.batch + row * of.row];
}

// Converts an i8 sum, which is passed as bits, to f32 after it subtracts the contribution of the zero point of x. Integers
// wrap, and the difference fits in 32 bits.
__device__ __forceinline__ float unshifted(float sum, uint32_t zero, uint32_t weight_sum) {
  return static_cast<float>(static_cast<int32_t>(__float_as_uint(sum) - zero * weight_sum));
}

// Index of the scale, among kRanges, that a column of the product has.
template <int kRanges>
__device__ __forceinline__ int range_of(const MatmulParams& p, int column) {
  int range = 0;
#pragma unroll
  for (int i = 0; i + 1 < kRanges; ++i) range += column >= p.starts[i];
  return range;
}

// Scales of one part of 128 elements of k, for two rows that are eight apart and for the columns of a tile. The part contains
// two scale blocks along k if the weight begins inside a block of k; the tile may contain two scale blocks along n if the
// weight begins inside a block of n.
struct PartScales {
  float row[2], column[2][2];  // scales of the weight: [block along k][block along n]
};

// A config S of block scales. X, Weight: types of scales. kCut: number of k-steps of a part before the next scale block of the
// weight; 4 if blocks of x and of the weight coincide. kTwo: columns of a tile may be in two scale blocks.
template <class C>
struct BlockScales {
  using S = typename C::Scales;
  static constexpr int kBlocks = S::kTwo ? 2 : 1;  // scale blocks along n per tile
  using X = const typename Stored<typename S::X>::Bits*;
  using Weight = const typename Stored<typename S::Weight>::Bits*;
  X x[2];
  Weight weight[kBlocks];
  int64_t x_part, weight_part;
  int left;  // elements of k from the part that `next` loads
  int second;  // first column of the next scale block, after the one that contains tile.column

  __device__ __forceinline__ BlockScales(const MatmulParams& p, const Tile& tile, int row) {
    x_part = p.x_scale.part, weight_part = p.weight_scale.part;
    second = ((tile.column + p.offset_columns) / 128 + 1) * 128 - p.offset_columns;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      x[half] = static_cast<X>(p.x_scale.data) + tile.batch * p.x_scale.batch;
      // Rows outside load the scale of another row; their results are not stored.
      int taken = min(row + 8 * half, tile.end - 1);
      if constexpr (C::kGather) taken = max(0, row_taken(p, tile, row + 8 * half));
      x[half] += taken * p.x_scale.row;
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int first = block == 0 ? tile.column : min(second, p.columns - 1);
      weight[block] = static_cast<Weight>(p.weight_scale.data) + tile.weight * p.weight_scale.batch +
                      (first + p.offset_columns) / 128 * p.weight_scale.row;
    }
    left = C::kGather && p.num_x_rows == 0 ? 0 : p.k;
  }
  // Loads the scales of the next part.
  __device__ __forceinline__ PartScales next() {
    PartScales found;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      found.row[half] = left > 0 ? Stored<typename S::X>::load(*x[half]) : 0.f;
      x[half] += x_part;
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int next = 0; next < (S::kCut < 4 ? 2 : 1); ++next) {
        const bool inside = left > next * S::kCut * 32;
        found.column[next][block] = inside ? Stored<typename S::Weight>::load(weight[block][next * weight_part]) : 0.f;
      }
      weight[block] += weight_part;
    }
    left -= 128;
    return found;
  }
};

}  // namespace opfacade
