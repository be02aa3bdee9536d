// Copies lines of an operand, which may begin at any address, to a stage: each aligned chunk of sixteen bytes as it is. Readers
// shift the elements. Nothing outside of a line is read.
#pragma once
#include "kernels/matmul/direct/shape.h"
#include "kernels/matmul/matmul_params.h"
#include "kernels/ptx/cp_async_part.cuh"

namespace opfacade {

// The lines of an operand in one tile. kLines: most lines. kThreads: threads that copy them. A thread copies chunks chunk,
// chunk + kLanes and so on of lines line, line + 8 and so on: lines that are eight apart begin alike.
template <int kLines, int kThreads>
struct DirectLines {
  static constexpr int kLanes = kThreads / 8, kChunks = kDirectStep / 8;
  const uint16_t* data;  // first element of the first line
  int64_t step, each;    // elements between lines, and between elements of a line
  int lines, size;       // size: elements per line
  int thread, line, chunk, first;  // first: element at the start of this thread's first chunk, negative before the line
  const uint16_t* own;             // that element, aligned to sixteen bytes
  int64_t eighth;                  // elements between lines of this thread
  bool shifted, odd;               // a line may begin inside a chunk, or between two words

  // row: index of the first line. end: number of lines of the operand.
  __device__ __forceinline__ DirectLines(const MatmulOperand& of, int batch, int row, int end, int k, int index)
      : data(static_cast<const uint16_t*>(of.data) + batch * of.batch + row * of.row), step(of.row), each(of.k), lines(min(end - row, kLines)), size(k),
        thread(index), line(index / kLanes), chunk(index % kLanes), first(8 * chunk - over(line)), own(data + line * step + first), eighth(8 * step) {
    const uint64_t places = reinterpret_cast<uintptr_t>(of.data) | 2 * static_cast<uint64_t>(of.row | of.batch);
    shifted = each == 1 && places % 16 != 0, odd = each == 1 && places % 4 != 0;
  }
  // Number of elements between the start of a chunk and that of a line.
  __device__ __forceinline__ int over(int of) const {
    return each == 1 ? static_cast<int>(reinterpret_cast<uintptr_t>(data + of * step) % 16) / 2 : 0;
  }
  // Copies the elements of a step of k, which begins at element `from`, and zeros up to a multiple of 16.
  __device__ __forceinline__ void copy(uint32_t to, int from) const {
    const int left = size - from, filled = (min(left, kDirectStep) + 15) / 16 * 16;
    if (each != 1) return copy_apart(to, from, filled);
    const uint32_t place = to + line * kDirectPitch + chunk * 16;
#pragma unroll
    for (int j = 0; j <= kChunks; j += kLanes) {
      const int at = first + 8 * j;
      // the first chunk of a line also contains elements before the line; copy_first stores it
      if (at >= filled || from + at < 0 || (j == kChunks && (chunk > 0 || !shifted))) continue;
      if (left - at >= 8) copy_chunks(place + 16 * j, own + from + 8 * j, 16); else copy_chunks(place + 16 * j, own + from + 8 * j, 2 * max(left - at, 0));
    }
  }
  // Stores the elements before the first aligned chunk of each line. Eight threads have one line.
  __device__ __forceinline__ void copy_first(uint32_t to) const {
#pragma unroll 1
    for (int i = thread / 8; shifted && i < lines; i += kThreads / 8) {
      const int at = thread % 8 - over(i);
      unsigned char* const place = dynamic_shared() + (to - smem_address(dynamic_shared())) + i * kDirectPitch + thread % 8 * 2;
      if (at >= 0 && at < thread % 8) *reinterpret_cast<uint16_t*>(place) = at < size ? data[i * step + at] : 0;
    }
  }

 private:
  // Copies the first `bytes` bytes of the same chunk of all lines of this thread.
  __device__ __forceinline__ void copy_chunks(uint32_t to, const uint16_t* begin, int bytes) const {
#pragma unroll
    for (int i = 0; i < kLines; i += 8, begin += eighth)
      if (line + i < lines) cp_async_part(to + i * kDirectPitch, begin, bytes);
  }
  // Copies elements that are not adjacent, two at a time.
  __device__ __forceinline__ void copy_apart(uint32_t to, int from, int filled) const {
#pragma unroll 1
    for (int i = thread; i < lines * (kDirectStep / 2); i += kThreads) {
      const int which = i / (kDirectStep / 2), at = i % (kDirectStep / 2) * 2, left = size - from - at;
      const uint16_t* begin = data + which * step + (from + at) * each;
      if (at < filled) store_shared_4(to + which * kDirectPitch + 2 * at, (left > 0 ? begin[0] : 0) | (left > 1 ? uint32_t{begin[each]} << 16 : 0));
    }
  }
};

// Where a thread reads a line: the offset of its first word, and the bytes of two consecutive words that it takes.
struct DirectReader {
  uint32_t offset, selector;

  // over: elements before the line. A thread has elements 2t, 2t + 1, 2t + 8 and 2t + 9 of each k-step, t being lane % 4.
  __device__ __forceinline__ DirectReader(int line, int over)
      : offset(line * kDirectPitch + (over / 2 + threadIdx.x % 4) * 4), selector(over % 2 != 0 ? 0x5432u : 0x3210u) {}
  // at: shared address of the k-step. kOdd: the line may begin between two words.
  template <bool kOdd>
  __device__ __forceinline__ uint2 read(uint32_t at) const {
    const uint32_t low = load_shared_4(at + offset), high = load_shared_4(at + offset + 16);
    if constexpr (!kOdd) return make_uint2(low, high);
    return make_uint2(__byte_perm(low, load_shared_4(at + offset + 4), selector), __byte_perm(high, load_shared_4(at + offset + 20), selector));
  }
};

}  // namespace opfacade
