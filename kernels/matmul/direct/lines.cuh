// Copies lines of an operand, which may begin at any address, to a stage: each aligned chunk of sixteen bytes as it is. Readers
// shift the elements. Nothing outside of a line is read.
#pragma once
#include "kernels/matmul/direct/shape.h"
#include "kernels/matmul/matmul_params.h"
#include "kernels/ptx/cp_async_part.cuh"
#include "kernels/ptx/forget.cuh"

namespace opfacade {

// The lines of an operand in one tile. kLines: most lines. kThreads: threads that copy them. A thread copies chunks chunk,
// chunk + kLanes and so on of lines line, line + 8 and so on: lines that are eight apart begin alike.
template <int kLines, int kThreads>
struct DirectLines {
  static constexpr int kLanes = kThreads / 8, kChunks = kDirectStep / 8;
  static constexpr int kAt = kThreads / 8, kFirsts = (kLines + kAt - 1) / kAt;  // lines whose first elements a warp loads at once
  using Firsts = uint16_t[kFirsts];
  const uint16_t* data;  // first element of the first line
  int64_t step, each;    // elements between lines, and between elements of a line
  int lines, size;       // size: elements per line
  int thread, line, chunk, first;  // first: element at the start of this thread's first chunk, negative before the line
  const uint16_t* own;             // that element, aligned to sixteen bytes
  int64_t eighth;                  // elements between lines of this thread
  bool shifted, odd;               // a line may begin inside a chunk, or between two words
  int whole, last;                 // steps that begin at elements `whole` to `last` are copied whole
  uint32_t mine, more;             // number of lines of this thread, also of those that it copies one chunk more of

  // row: index of the first line. end: number of lines of the operand.
  __device__ __forceinline__ DirectLines(const MatmulOperand& of, int batch, int row, int end, int k, int index)
      : data(static_cast<const uint16_t*>(of.data) + batch * of.batch + row * of.row), step(of.row), each(of.k), lines(min(end - row, kLines)), size(k),
        thread(index), line(index / kLanes), chunk(index % kLanes), first(8 * chunk - over(line)), own(data + line * step + first), eighth(8 * step) {
    const uint64_t places = reinterpret_cast<uintptr_t>(of.data) | 2 * static_cast<uint64_t>(of.row | of.batch);
    shifted = each == 1 && places % 16 != 0, odd = each == 1 && places % 4 != 0;
    whole = each != 1 ? size : shifted ? 1 : 0, last = size - kDirectStep - 8;
    mine = max(lines - line + 7, 0) / 8, more = shifted && chunk == 0 ? mine : 0;
    forget_origin(mine), forget_origin(more);  // so that stages do not compute them again
  }
  // Number of elements between the start of a chunk and that of a line.
  __device__ __forceinline__ int over(int of) const {
    return each == 1 ? static_cast<int>(reinterpret_cast<uintptr_t>(data + of * step) % 16) / 2 : 0;
  }
  // Copies the elements of a step of k, which begins at element `from`, and zeros up to a multiple of 16.
  __device__ __forceinline__ void copy(uint32_t to, int from) const {
    const uint32_t place = to + line * kDirectPitch + chunk * 16;
    if (from >= whole && from <= last) copy_whole(place, own + from); else copy_part(to, place, from, size - from);
  }
  // Loads the elements before the first aligned chunk of each line. Eight threads have one line.
  __device__ __forceinline__ void load_first(Firsts& firsts) const {
#pragma unroll
    for (int i = 0; i < kFirsts; ++i) {
      const int of = thread / 8 + i * kAt, at = thread % 8 - over(of);
      firsts[i] = is_first(of, at) && at < size ? data[of * step + at] : 0;
    }
  }
  __device__ __forceinline__ void store_first(uint32_t to, const Firsts& firsts) const {
#pragma unroll
    for (int i = 0; i < kFirsts; ++i) {
      const int of = thread / 8 + i * kAt;
      unsigned char* const place = dynamic_shared() + (to - smem_address(dynamic_shared())) + of * kDirectPitch + thread % 8 * 2;
      if (is_first(of, thread % 8 - over(of))) *reinterpret_cast<uint16_t*>(place) = firsts[i];
    }
  }

 private:
  __device__ __forceinline__ bool is_first(int of, int at) const { return shifted && of < lines && at >= 0 && at < thread % 8; }
  // Copies a step whose chunks all are in the line.
  __device__ __forceinline__ void copy_whole(uint32_t place, const uint16_t* from) const {
#pragma unroll
    for (int i = 0; i < kLines / 8; ++i, from += eighth) {
#pragma unroll
      for (int j = 0; j < kChunks; j += kLanes) cp_async_16_if(i < mine, place + i * 8 * kDirectPitch + 16 * j, from + 8 * j);
      cp_async_16_if(i < more, place + i * 8 * kDirectPitch + 16 * kChunks, from + 8 * kChunks);
    }
  }
  // Copies a step at the start or the end of lines.
  __device__ __forceinline__ void copy_part(uint32_t to, uint32_t place, int from, int left) const {
    const int filled = (min(left, kDirectStep) + 15) / 16 * 16;
    if (each != 1) return copy_apart(to, from, filled);
#pragma unroll 1
    for (int j = 0; j <= kChunks; j += kLanes) {
      const int at = first + 8 * j, bytes = 2 * min(max(left - at, 0), 8);
      // the first chunk of a line also contains elements before the line; store_first stores it
      if (at >= filled || from + at < 0 || (j == kChunks && (chunk > 0 || !shifted))) continue;
      const uint16_t* begin = own + from + 8 * j;
#pragma unroll
      for (int i = 0; i < kLines; i += 8, begin += eighth)
        if (line + i < lines) cp_async_part(place + i * kDirectPitch + 16 * j, begin, bytes);
    }
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
      : offset(line * kDirectPitch + (over / 2 + threadIdx.x % 4) * 4), selector(over % 2 != 0 ? 0x5432u : 0x3210u) {
    forget_origin(offset), forget_origin(selector);  // so that stages do not compute them again
  }
  // at: shared address of the k-step. kOdd: the line may begin between two words.
  template <bool kOdd>
  __device__ __forceinline__ uint2 read(uint32_t at) const {
    const uint32_t low = load_shared_4(at + offset), high = load_shared_4(at + offset + 16);
    if constexpr (!kOdd) return make_uint2(low, high);
    return make_uint2(__byte_perm(low, load_shared_4(at + offset + 4), selector), __byte_perm(high, load_shared_4(at + offset + 20), selector));
  }
};

}  // namespace opfacade
