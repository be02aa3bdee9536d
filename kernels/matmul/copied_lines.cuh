// Copies the lines of an operand, which may begin at any address, to a stage without registers. cp.async copies aligned vectors
// of a line unchanged to the positions of its chunks. After they have arrived, each thread shifts its chunks and fills them up
// with bytes of the next vector; for the last chunk, that is the first vector of the next stage. Nothing outside of a line is
// read.
#pragma once
#include "kernels/matmul/lines.cuh"
#include "kernels/matmul/tiles.cuh"
#include "kernels/ptx/cp_async_part.cuh"

namespace opfacade {

// The lines of an operand that belong to one tile. A thread has the same chunk of lines line, line + kLines and so on.
template <class C, int kRows>
struct CopiedLines {
  using Bits = typename UnsignedOf<C::kSize>::Type;
  static constexpr int kEach = 16 / C::kSize, kChunks = C::kPanels * 8;  // elements per chunk; chunks of a line per stage
  // kLines: lines of all threads at a time. kCount: lines per thread.
  static constexpr int kLines = kWarpgroup / kChunks, kCount = kRows / kLines;
  // kBatch: lines per thread that are in registers at a time
  static constexpr int kBatch = kComputing<C> == 1 && kCount % 4 == 0 ? 4 : 2;
  // kApart: threads copy the first chunks of lines separately (copy_first); with several computing warpgroups registers do not
  // suffice.
  static constexpr bool kApart = kComputing<C> == 1;
  static_assert(kCount % kBatch == 0, "whole batches");

  const Bits* begin;  // first line of this thread
  int64_t step;       // elements between consecutive lines of this thread
  int line, chunk, lines, length;

  // rows: rows of the operand. first: first row of the tile. k: elements per line.
  __device__ __forceinline__ CopiedLines(const MatmulOperand& from, int batch, int first, int rows, int k) {
    const int thread = threadIdx.x % kWarpgroup;
    line = thread / kChunks, chunk = thread % kChunks, lines = rows - first, length = k, step = kLines * from.row;
    begin = static_cast<const Bits*>(from.data) + batch * from.batch + (first + line) * from.row;
  }
  // Number of elements between the previous aligned address and the start of this thread's line i.
  __device__ __forceinline__ int over(int i) const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(begin + i * step) % 16) / C::kSize;
  }
  __device__ __forceinline__ uint32_t place(uint32_t stage, int i, int at) const {
    return stage + at / 8 * kRows * 128 + panel_address(line + i * kLines, at % 8);
  }
  // Copies the vectors of this stage, which begins at element k. only_first: copies only the first vector of each line.
  __device__ __forceinline__ void copy(uint32_t stage, int k, bool only_first) const {
    if (only_first && chunk != 0) return;
#pragma unroll 4
    for (int i = 0; i < kCount; ++i) {
      if (line + i * kLines >= lines) break;
      // negative in the first vector of an unaligned line, which copy_first or moved_chunk reads
      const int at = k + chunk * kEach - over(i);
      if (at >= 0) cp_async_part(place(stage, i, chunk), begin + i * step + at, min(max(length - at, 0), kEach) * C::kSize);
    }
  }
  // Stores the first chunk of each unaligned line, which contains elements before the first aligned vector. A lane stores chunks
  // of lines of its warp: no barrier is between other warps and their last copies to this stage, for the tile before.
  __device__ __forceinline__ void copy_first(uint32_t stage) const {
    constexpr int kOfWarp = 32 / kChunks;  // lines of a warp at a time
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < kCount * kOfWarp; i += 32) {
      const int own = i / kOfWarp * kLines + threadIdx.x % kWarpgroup / 32 * kOfWarp + i % kOfWarp;
      if (own >= lines) break;
      const Bits* from = begin + (own - line) * (step / kLines);
      if (reinterpret_cast<uintptr_t>(from) % 16 == 0) continue;
      store_shared_16(stage + panel_address(own, 0), chunk_of(from, 1, length));
    }
  }
  // Shifts chunks after the vectors of this stage and of the next have arrived. All threads of the warp call it.
  __device__ __forceinline__ void shift(uint32_t stage, uint32_t next, int k) const {
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < kCount; first += kBatch) {
      uint4 moved[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) moved[j] = moved_chunk(stage, next, first + j, k);
      __syncwarp();  // all lanes have read the chunks that are overwritten now
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
