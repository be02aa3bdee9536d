// Results of 16 bits through shared memory: each warp puts some columns of its sixteen rows there, word by word as its threads have
// them, and stores them as lines of 128 bytes. This takes fewer instructions than an exchange among threads, and no
// products run meanwhile. Warps do not wait for each other.
#pragma once
#include "kernels/matmul/tiles.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

// Integer sums of 256 columns leave no registers for it.
template <class T>
constexpr bool kIsInteger = false;
template <class T>
constexpr bool kIsInteger<Integer<T>> = true;

// Behind the stages and barriers of a CTA; shared_with_rows of csrc/matmul/matmul.h requests as many bytes.
template <class C>
struct StagedRows {
  static constexpr bool kUsed = C::Program::kWide && C::kSplit == 1 && !C::kGrouped && !C::kCoded && !kIsInteger<typename C::T>;
  static constexpr int kColumns = C::kColumns % 64 == 0 ? 64 : 32, kLine = 2 * kColumns;  // at a time; bytes of a row
  static constexpr int kVectors = kLine / 16, kLines = 32 / kVectors, kRound = 16 / kLines;  // of a line; at a time; how often
  static constexpr int kBegin = (MatmulShared<C>::kBytes + 127) / 128 * 128;
  static constexpr int kUnroll = C::kBlocks == 8 ? C::kColumns / kColumns : 1;  // long programs are there once

  // The vector of a line lies where vectors of the same place in other lines have other banks.
  static __device__ __forceinline__ unsigned char* place(int row, int vector) {
    const int warp = threadIdx.x / 32 - kWarpgroup / 32;  // behind those that load
    return dynamic_shared() + kBegin + (warp * 16 + row) * kLine + (vector ^ row * kLine / 128 % kVectors) * 16;
  }
  // Results of some columns from `column` on. row: the first of this warp.
  static __device__ __forceinline__ void put(const MatmulParams& p, const Tile& tile, int row, int column, const float* sums) {
    using Program = typename C::Program;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int block = 0; block < kVectors; ++block) {
      const int at = column + 8 * block + lane % 4 * 2, left = p.columns - at;
      typename Program::Columns columns;
      Program::load_columns(columns, p, tile.weight, at, left);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int own = lane / 4 + 8 * half;
        float result[2];
        Program::values(result, p, columns, tile.batch, row + own, at, row + own < tile.end ? left : 0, sums[4 * block + 2 * half],
                        sums[4 * block + 2 * half + 1]);
        reinterpret_cast<uint32_t*>(place(own, block))[lane % 4] = Program::Out::pack(result[0], result[1]);
      }
    }
  }
  static __device__ __forceinline__ void store(const MatmulParams& p, const Tile& tile, int row, int column) {
    const int lane = threadIdx.x % 32, vector = lane % kVectors, first = row + lane / kVectors;
    uint16_t* const out = static_cast<uint16_t*>(p.out.data) + tile.batch * p.out.batch + column + 8 * vector;
    uint4 found[kRound];
#pragma unroll
    for (int i = 0; i < kRound; ++i) found[i] = *reinterpret_cast<const uint4*>(place(lane / kVectors + i * kLines, vector));
    if (column + 8 * vector >= p.columns) return;
#pragma unroll
    for (int i = 0; i < kRound; ++i)
      if (first + i * kLines < tile.end) store_vector(out + (first + i * kLines) * p.out.row, found[i]);
  }
  // Whether vectors of eight columns are aligned, and lie in a row or behind it.
  static __device__ __forceinline__ bool fits(const MatmulParams& p) { return p.out.eights != 0 && p.columns % 8 == 0; }

  static __device__ __forceinline__ void finish(const MatmulParams& p, const Tile& tile, int group, float (&sums)[C::kColumns / 2]) {
    const int row = tile.row + group * 64 + threadIdx.x % kWarpgroup / 32 * 16;
    if (row >= tile.end) return;
#pragma unroll kUnroll
    for (int first = 0; first < C::kColumns; first += kColumns) {
      if (tile.column + first >= p.columns) break;
      put(p, tile, row, tile.column + first, sums);
      __syncwarp();
      store(p, tile, row, tile.column + first);
      __syncwarp();  // all have read what is written next
#pragma unroll
      for (int i = 0; i + kColumns / 2 < C::kColumns / 2; ++i) sums[i] = sums[i + kColumns / 2];
    }
  }
};

}  // namespace opfacade
