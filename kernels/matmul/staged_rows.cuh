// Stores 16-bit results through shared memory. Each warp writes a box, which has its sixteen rows and some of the columns, to
// shared memory. TMA stores the box while the warp continues with the next box and with the products of the next tile. Warps do
// not wait for each other.
#pragma once
#include "kernels/matmul/tiles.cuh"
#include "kernels/ptx/forget.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

// Integer sums of 256 columns leave too few registers for StagedRows.
template <class T>
constexpr bool kIsInteger = false;
template <class T>
constexpr bool kIsInteger<Integer<T>> = true;

template <class C>
struct StagedRows {
  static constexpr bool kUsed = C::Program::kWide && C::kSplit == 1 && !C::kGrouped && !C::kCoded && !kIsInteger<typename C::T>;
  static constexpr Boxes kBoxes = boxes_of(C::kStages, MatmulShared<C>::kStage + MatmulShared<C>::kEach, C::kRows, C::kColumns);
  static constexpr int kColumns = kBoxes.columns, kLine = 2 * kColumns;  // columns per box; bytes per row of a box
  // kVectors: vectors per row. kLines: rows that a warp reads at a time. kRound: reads per box.
  static constexpr int kVectors = kLine / 16, kLines = 32 / kVectors, kRound = 16 / kLines;
  static constexpr bool kShort = C::kBlocks == 8;  // short programs are unrolled; long ones are in a loop, where sums move down

  uint32_t thread = threadIdx.x;  // hidden from the compiler, so that shared addresses occupy no registers during products

  __device__ __forceinline__ StagedRows() { forget_origin(thread); }
  __device__ __forceinline__ int lane() const { return thread % 32; }
  // Box `box` of this warp. The warps of the producer have no boxes.
  __device__ __forceinline__ unsigned char* box_at(int box) const {
    return dynamic_shared() + kBoxes.begin + ((thread / 32 - kWarpgroup / 32) * kBoxes.count + box) * kBoxes.bytes();
  }
  // Address of a vector in the swizzled layout of TMA: vectors with the same index in adjacent rows are in different banks.
  __device__ __forceinline__ unsigned char* place(int box, int row, int vector) const {
    return box_at(box) + row * kLine + (vector ^ swizzle_of<kVectors>(row)) * 16;
  }
  // Waits until TMA has read all boxes except the latest kPending. One thread per warp issues stores and waits for them.
  template <int kPending>
  static __device__ __forceinline__ void wait_for_boxes() {
    if (elected()) tma_store_wait<kPending>();
    __syncwarp();
  }
  // Writes the results of one box, which begins at column `column`. row: first row of this warp.
  __device__ __forceinline__ void put(const MatmulParams& p, const Tile& tile, int row, int column, int box, const float* sums) const {
    using Program = typename C::Program;
    const int lane = this->lane();
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
        reinterpret_cast<uint32_t*>(place(box, own, block))[lane % 4] = Program::Out::pack(result[0], result[1]);
      }
    }
  }
  // By threads.
  __device__ __forceinline__ void store(const MatmulParams& p, const Tile& tile, int row, int column, int box) const {
    const int lane = this->lane(), vector = lane % kVectors, first = row + lane / kVectors;
    uint16_t* const out = static_cast<uint16_t*>(p.out.data) + tile.batch * p.out.batch + column + 8 * vector;
    uint4 found[kRound];
#pragma unroll
    for (int i = 0; i < kRound; ++i) found[i] = *reinterpret_cast<const uint4*>(place(box, lane / kVectors + i * kLines, vector));
    if (column + 8 * vector >= p.columns) return;
#pragma unroll
    for (int i = 0; i < kRound; ++i)
      if (first + i * kLines < tile.end) store_vector(out + (first + i * kLines) * p.out.row, found[i]);
  }
  // Stores a box by TMA, which ignores elements after the last row or column of out.
  __device__ __forceinline__ void send(const MatmulParams& p, const Tile& tile, int row, int column, int box) const {
    if (!elected()) return;
    tma_store(p.out_map, smem_address(box_at(box)), {{column, row, tile.batch, 0, 0}});
    tma_store_commit();
  }
  // Whether vectors of eight columns are aligned, and either end inside the row or are stored by TMA, which can cut a vector.
  static __device__ __forceinline__ bool fits(const MatmulParams& p) {
    return p.out.eights != 0 && (p.columns % 8 == 0 || (p.out_mapped != 0 && p.num_valid == nullptr));
  }

  __device__ __forceinline__ void finish(const MatmulParams& p, const Tile& tile, int group, float (&sums)[C::kColumns / 2]) const {
    const int row = tile.row + group * 64 + thread % kWarpgroup / 32 * 16;
    if (row >= tile.end) return;
    // TMA stores all 16 rows of a box, up to the last row of out: rows after the end of the tile must not be stored
    const bool sends = p.out_mapped != 0 && (tile.end == p.rows || row + 16 <= tile.end);
#pragma unroll(kShort ? C::kColumns / kColumns : 1)
    for (int first = 0; first < C::kColumns; first += kColumns) {
      const int piece = first / kColumns, box = piece % kBoxes.count;
      if (tile.column + first >= p.columns) continue;
      // Each tile begins with box 0.
      if (piece == 0) wait_for_boxes<0>();
      else if (piece >= kBoxes.count) wait_for_boxes<kBoxes.count - 1>();
      put(p, tile, row, tile.column + first, box, kShort ? sums + first / 2 : sums);
      if (sends) fence_async_shared();
      __syncwarp();
      if (sends) send(p, tile, row, tile.column + first, box);
      else store(p, tile, row, tile.column + first, box);
      if constexpr (!kShort) {
#pragma unroll
        for (int i = 0; i + kColumns / 2 < C::kColumns / 2; ++i) sums[i] = sums[i + kColumns / 2];
      }
    }
  }
};

}  // namespace opfacade
