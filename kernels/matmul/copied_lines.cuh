// Lines of an operand that begin anywhere in memory, brought into a stage without a register in between: cp.async copies aligned
// vectors of a line, as they lie, to the places of its chunks. When they have come, each thread shifts its chunks, with the bytes of
// the next vector; that behind the last one is the first vector of the next stage. Nothing outside of a line is read.
#pragma once
#include "kernels/matmul/lines.cuh"
#include "kernels/matmul/tiles.cuh"
#include "kernels/ptx/cp_async_part.cuh"

namespace opfacade {

// The lines of one tile of one operand. A warp has whole lines, a thread the same chunk of each of its own. Instructions of the warps
// that copy limit their rate, so that places and addresses of whole vectors follow from those of the first line by sums. kFew: a thread
// has few registers (lean_lines.cuh).
template <class C, int kRows, bool kFew = (kComputing<C> > 1)>
struct CopiedLines {
  using Bits = typename UnsignedOf<C::kSize>::Type;
  static constexpr int kEach = 16 / C::kSize, kChunks = C::kPanels * 8;  // elements of a chunk; chunks of a line in a stage
  static constexpr int kLines = kWarpgroup / kChunks, kCount = kRows / kLines;  // lines at a time; lines of a thread
  static constexpr int kBatch = kCount % 4 == 0 ? 4 : kCount % 2 == 0 ? 2 : 1;  // lines whose chunks are in registers at a time
  static constexpr int kNext = kLines * 128;  // bytes of a stage from one line of a thread to the next
  static_assert(kCount % kBatch == 0, "whole batches");
  static_assert(kLines % 8 == 0, "lines of a thread are swizzled alike");

  const Bits* begin;  // of the first line of this thread
  int64_t step;       // elements from one of its lines to the next
  int line, chunk, lines, length;

  // rows: of the operand, of which the tile begins with `first`.
  __device__ __forceinline__ CopiedLines(const MatmulOperand& from, int batch, int first, int rows, int k) {
    const int thread = threadIdx.x % kWarpgroup;
    line = thread / kChunks, chunk = thread % kChunks, lines = rows - first, length = k, step = kLines * from.row;
    begin = static_cast<const Bits*>(from.data) + batch * from.batch + (first + line) * from.row;
  }
  // Copies the vectors of elements of k from `k` on. only_first: those of the first chunk.
  __device__ __forceinline__ void copy(uint32_t stage, int k, bool only_first) const {
    if (only_first && chunk != 0) return;
    const int at = k + chunk * kEach;
    if (at == 0 || length - at < kEach) return copy_parts(stage, at);
    const Bits* from = begin + at;
    const int own = this->own();
    uint32_t to = stage + place_of(chunk);
#pragma unroll
    for (int first = 0; first < kCount; first += kBatch) {
      if (first >= own) break;
#pragma unroll
      for (int i = first; i < first + kBatch; ++i, from += step, to += kNext)
        if (i < own) cp_async_16(to, from_aligned(from), true);
    }
  }
  // The first chunk of each line that is not aligned, which has elements before the first aligned vector. A thread has other lines here.
  __device__ __forceinline__ void copy_first(uint32_t stage) const {
#pragma unroll 1
    for (int other = threadIdx.x % kWarpgroup; other < min(kRows, lines); other += kWarpgroup) {
      const Bits* from = begin + (other - line) * (step / kLines);
      if (over_of(from) == 0) continue;
      store_shared_16(stage + panel_address(other, 0), chunk_of(from, 1, length));
    }
  }
  // Moves vectors that have come to this stage and the next by all threads of the warp.
  __device__ __forceinline__ void shift(uint32_t stage, uint32_t next, int k) const {
    const int own = this->own(), most = count(threadIdx.x % kWarpgroup / 32 * 32 / kChunks);  // of this thread, and of the first of its warp
    if (most == 0) return;
    __syncwarp();
    uint32_t from = stage + place_of(chunk), then = (chunk + 1 < kChunks ? stage : next) + place_of((chunk + 1) % kChunks);
    const uint32_t each = static_cast<uint32_t>(step) * C::kSize;
    const bool starts = k + chunk == 0;
    uint32_t over = over_of(begin);
#pragma unroll
    for (int first = 0; first < kCount; first += kBatch, from += kBatch * kNext, then += kBatch * kNext) {
      if (first >= most) break;
      uint4 moved[kBatch];
      bool moves[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j, over = (over + each) % 16) {
        const int i = first + j;
        moves[j] = i < own && over != 0 && !starts;
        // Chunks that stay are read too: whether they do differs in a warp.
        moved[j] = shifted(load_shared_16(from + j * kNext), load_shared_16(then + j * kNext), over);
      }
      __syncwarp();  // all have read what is overwritten
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (moves[j]) store_shared_16(from + j * kNext, moved[j]);
    }
  }

 private:
  __device__ __forceinline__ int own() const { return count(line); }
  // Lines from one on, kLines apart, that lie in the operand.
  __device__ __forceinline__ int count(int from) const { return min(max((lines - from + kLines - 1) / kLines, 0), kCount); }
  __device__ __forceinline__ uint32_t place_of(int of) const { return of / 8 * kRows * 128 + panel_address(line, of % 8); }
  // How many bytes an address lies behind an aligned one.
  static __device__ __forceinline__ uint32_t over_of(const Bits* from) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) % 16; }
  static __device__ __forceinline__ const void* from_aligned(const Bits* from) {
    return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(from) & ~uintptr_t{15});
  }
  // Vectors at the ends of lines. The first one of a line that is not aligned begins before it, and is not copied.
  __device__ __forceinline__ void copy_parts(uint32_t stage, int at) const {
    const Bits* from = begin + at;
    uint32_t to = stage + place_of(chunk);
#pragma unroll 1
    for (int i = own(); i > 0; --i, from += step, to += kNext) {
      const int over = over_of(from) / C::kSize;
      if (at > 0 || over == 0) cp_async_part(to, from_aligned(from), min(max(length - at + over, 0), kEach) * C::kSize);
    }
  }
  static __device__ __forceinline__ uint4 shifted(uint4 own, uint4 behind, uint32_t over) {
    uint32_t word[8] = {own.x, own.y, own.z, own.w, behind.x, behind.y, behind.z, behind.w};
    shift_down<4, C::kSize>(word, over);
    return make_uint4(word[0], word[1], word[2], word[3]);
  }
};

}  // namespace opfacade
