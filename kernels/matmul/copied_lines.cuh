// Lines of an operand that begin anywhere in memory, brought into a stage without a register in between: cp.async copies aligned
// vectors of a line, as they lie, to the places of its chunks. When they have come, each thread shifts its chunks, with the bytes of
// the next vector; that behind the last one is the first vector of the next stage. Nothing outside of a line is read.
#pragma once
#include "kernels/matmul/lines.cuh"
#include "kernels/matmul/tiles.cuh"
#include "kernels/ptx/cp_async_part.cuh"

namespace opfacade {

// The lines of one tile of one operand. A warp has whole lines, a thread the same chunk of each of its own.
template <class C, int kRows>
struct CopiedLines {
  using Bits = typename UnsignedOf<C::kSize>::Type;
  static constexpr int kEach = 16 / C::kSize, kChunks = C::kPanels * 8;  // elements of a chunk; chunks of a line in a stage
  static constexpr int kLines = kWarpgroup / kChunks, kCount = kRows / kLines;  // lines at a time; lines of a thread
  static constexpr int kBatch = kComputing<C> == 1 && kCount % 4 == 0 ? 4 : 2;  // lines whose chunks are in registers at a time
  static constexpr bool kApart = kComputing<C> == 1;  // each thread copies first chunks of lines of its own; else no registers are left
  static_assert(kCount % kBatch == 0, "whole batches");

  const Bits* begin;  // of the first line of this thread
  int64_t step;       // elements from one of its lines to the next
  int line, chunk, lines, length;

  // rows: of the operand, of which the tile begins with `first`.
  __device__ __forceinline__ CopiedLines(const MatmulOperand& from, int batch, int first, int rows, int k) {
    const int thread = threadIdx.x % kWarpgroup;
    line = thread / kChunks, chunk = thread % kChunks, lines = rows - first, length = k, step = kLines * from.row;
    begin = static_cast<const Bits*>(from.data) + batch * from.batch + (first + line) * from.row;
  }
  // How many elements the line of index i begins behind an aligned address.
  __device__ __forceinline__ int over(int i) const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(begin + i * step) % 16) / C::kSize;
  }
  __device__ __forceinline__ uint32_t place(uint32_t stage, int i, int at) const {
    return stage + at / 8 * kRows * 128 + panel_address(line + i * kLines, at % 8);
  }
  // Copies the vectors of elements of k from `k` on. only_first: those of the first chunk.
  __device__ __forceinline__ void copy(uint32_t stage, int k, bool only_first) const {
    if (only_first && chunk != 0) return;
#pragma unroll 4
    for (int i = 0; i < kCount; ++i) {
      if (line + i * kLines >= lines) break;
      const int at = k + chunk * kEach - over(i);  // below 0 in the first vector of a line that is not aligned: that is not copied
      if (at >= 0) cp_async_part(place(stage, i, chunk), begin + i * step + at, min(max(length - at, 0), kEach) * C::kSize);
    }
  }
  // The first chunk of each line that is not aligned, which has elements before the first aligned vector. A thread has other lines here.
  __device__ __forceinline__ void copy_first(uint32_t stage) const {
#pragma unroll 1
    for (int own = threadIdx.x % kWarpgroup; own < min(kRows, lines); own += kWarpgroup) {
      const Bits* from = begin + (own - line) * (step / kLines);
      if (reinterpret_cast<uintptr_t>(from) % 16 == 0) continue;
      store_shared_16(stage + panel_address(own, 0), chunk_of(from, 1, length));
    }
  }
  // Moves vectors that have come to this stage and the next by all threads of the warp.
  __device__ __forceinline__ void shift(uint32_t stage, uint32_t next, int k) const {
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < kCount; first += kBatch) {
      uint4 moved[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) moved[j] = moved_chunk(stage, next, first + j, k);
      __syncwarp();  // all have read what is overwritten
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (moves(first + j, k)) store_shared_16(place(stage, first + j, chunk), moved[j]);
    }
  }

 private:
  __device__ __forceinline__ bool moves(int i, int k) const { return line + i * kLines < lines && over(i) != 0 && (!kApart || k + chunk > 0); }
  __device__ __forceinline__ uint4 moved_chunk(uint32_t stage, uint32_t next, int i, int k) const {
    if (!moves(i, k)) return make_uint4(0, 0, 0, 0);
    if (!kApart && k + chunk == 0) return chunk_of(begin + i * step, 1, length);
    const uint4 own = load_shared_16(place(stage, i, chunk));
    const uint4 behind = load_shared_16(chunk + 1 < kChunks ? place(stage, i, chunk + 1) : place(next, i, 0));
    uint32_t word[8] = {own.x, own.y, own.z, own.w, behind.x, behind.y, behind.z, behind.w};
    shift_down<4, C::kSize>(word, over(i) * C::kSize);
    return make_uint4(word[0], word[1], word[2], word[3]);
  }
};

}  // namespace opfacade
