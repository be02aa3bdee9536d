// Epilogue of a tile: applies the program of the plan to each sum, and stores results.
#pragma once
#include "kernels/common/operations.cuh"
#include "kernels/matmul/scales.cuh"
#include "kernels/matmul/staged_rows.cuh"
#include "kernels/matmul/store_rows.cuh"
#include "kernels/matmul/tiles.cuh"
#include "kernels/tile/quad.cuh"

namespace opfacade {

// Loads and stores two adjacent columns; the second may be outside. left: number of columns from the first to the last one.
template <class T>
struct MatmulPair {
  using Bits = typename Stored<T>::Bits;
  using Both = typename UnsignedOf<2 * sizeof(Bits)>::Type;

  static __device__ __forceinline__ void load(float (&value)[2], const void* from, int64_t at, int left, bool aligned) {
    const Bits* bits = static_cast<const Bits*>(from) + at;
    if (aligned && left > 1) {
      const Both both = *reinterpret_cast<const Both*>(bits);
      value[0] = Stored<T>::load(static_cast<Bits>(both)), value[1] = Stored<T>::load(static_cast<Bits>(both >> 8 * sizeof(Bits)));
    } else {
      value[0] = left > 0 ? Stored<T>::load(bits[0]) : 0.f, value[1] = left > 1 ? Stored<T>::load(bits[1]) : 0.f;
    }
  }
  static __device__ __forceinline__ void store(void* to, int64_t at, const float (&value)[2], int left, bool aligned) {
    Bits* bits = static_cast<Bits*>(to) + at;
    const Bits first = Stored<T>::store(value[0]), second = Stored<T>::store(value[1]);
    if (aligned && left > 1) {
      *reinterpret_cast<Both*>(bits) = first | static_cast<Both>(second) << 8 * sizeof(Bits);
    } else {
      if (left > 0) bits[0] = first;
      if (left > 1) bits[1] = second;
    }
  }
};

// Whether a row of a tile is stored. Gathered rows with an invalid index are not.
template <class C>
__device__ __forceinline__ bool is_row(const MatmulParams& p, const Tile& tile, int row) {
  if (row >= tile.end) return false;
  if constexpr (C::kGather) return static_cast<uint32_t>(p.x_rows[static_cast<int64_t>(tile.batch) * p.rows + row]) < static_cast<uint32_t>(p.num_x_rows);
  return true;
}

// Finishes four sums of one thread (see wgmma.cuh): two adjacent columns, in rows `row` and `row` + 8.
template <class C>
__device__ __forceinline__ void finish_block(const MatmulParams& p, const Tile& tile, int row, int column, const float* sums) {
  using Program = typename C::Program;
  const int left = p.columns - column;
  if (left <= 0) return;
  typename Program::Columns columns;
  Program::load_columns(columns, p, tile.weight, column, left);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (is_row<C>(p, tile, row + 8 * half)) {
      float result[2];
      Program::values(result, p, columns, tile.batch, row + 8 * half, column, left, sums[2 * half], sums[2 * half + 1]);
      Program::store(p, tile.batch, row + 8 * half, column, left, result);
    }
  }
}

// Stores 16-bit results of a row, eight columns per thread. All threads of a warp call it.
struct WideRow {
  UnalignedRow unaligned;

  __device__ __forceinline__ void store(const MatmulParams& p, const Tile& tile, int row, int column, bool inside, const uint32_t (&word)[4], bool ends) {
    const int at = column + threadIdx.x % 4 * 8, left = inside ? p.columns - at : -16;
    uint16_t* to = static_cast<uint16_t*>(p.out.data) + tile.batch * p.out.batch + row * p.out.row + at;
    if (p.out.eights == 0) unaligned.store(to, word, left, column == tile.column, ends);
    else if (left >= 8) store_vector(to, make_uint4(word[0], word[1], word[2], word[3]));
    else store_part(to, word, 0, left);
  }
};

// Finishes four blocks of eight columns of 16-bit results; each thread of a quad stores eight columns. All threads of a warp
// call it.
template <class C>
__device__ __forceinline__ void finish_wide(const MatmulParams& p, const Tile& tile, int row, int column, const float* sums, WideRow (&rows)[2]) {
  using Program = typename C::Program;
  const int t = threadIdx.x % 4;
  const bool inside[2] = {is_row<C>(p, tile, row), is_row<C>(p, tile, row + 8)};
  uint32_t word[2][4];
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    const int at = column + 8 * block + 2 * t, left = p.columns - at;
    typename Program::Columns columns;
    Program::load_columns(columns, p, tile.weight, at, left);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float result[2];
      Program::values(result, p, columns, tile.batch, row + 8 * half, at, inside[half] ? left : 0, sums[4 * block + 2 * half],
                      sums[4 * block + 2 * half + 1]);
      word[half][block] = Program::Out::pack(result[0], result[1]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    transpose_quad(word[half]);
    rows[half].store(p, tile, row + 8 * half, column, inside[half], word[half], false);
  }
}

// Stores the elements that the last block of two unaligned rows has left over.
template <class C>
__device__ __forceinline__ void finish_rows(const MatmulParams& p, const Tile& tile, int row, WideRow (&rows)[2]) {
  if (p.out.eights != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    rows[half].store(p, tile, row + 8 * half, tile.column + C::kColumns, is_row<C>(p, tile, row + 8 * half), {}, true);
}

// Finishes kRound blocks per iteration, after which the sums move down. The loop contains the code of the program for only
// kRound blocks, which saves compile time.
template <class C>
__device__ __forceinline__ void finish_tile(const MatmulParams& p, const Tile& tile, int group, float (&sums)[C::kColumns / 2]) {
  if constexpr (StagedRows<C>::kUsed) {
    if (StagedRows<C>::fits(p)) return StagedRows<C>().finish(p, tile, group, sums);
  }
  constexpr int kMost = C::kBlocks < C::kColumns / 8 ? C::kBlocks : C::kColumns / 8;
  constexpr int kRound = C::kColumns / 8 % kMost == 0 ? kMost : 4, kStep = C::Program::kWide ? 4 : 1;
  const int thread = threadIdx.x % kWarpgroup, row = tile.row + group * 64 + thread / 32 * 16 + thread % 32 / 4;
  WideRow rows[2];
#pragma unroll 1
  for (int first = 0; first < C::kColumns; first += 8 * kRound) {
#pragma unroll
    for (int block = 0; block < kRound; block += kStep) {
      const int column = tile.column + first + 8 * block;
      if constexpr (C::Program::kWide) finish_wide<C>(p, tile, row, column, sums + 4 * block, rows);
      else finish_block<C>(p, tile, row, column + thread % 4 * 2, sums + 4 * block);
    }
#pragma unroll
    for (int i = 0; i + 4 * kRound < C::kColumns / 2; ++i) sums[i] = sums[i + 4 * kRound];
  }
  if constexpr (C::Program::kWide) finish_rows<C>(p, tile, row, rows);
}

}  // namespace opfacade
