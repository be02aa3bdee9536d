// Copies lines of an operand to a stage. A line may begin at any address. Its chunks of sixteen bytes are copied if all lines
// are aligned to them, otherwise its words of four bytes. A line that begins between two words is copied from the word that
// contains its first element, and readers shift it. Nothing outside of a line is read.
#pragma once
#include "kernels/matmul/direct/shape.h"
#include "kernels/matmul/matmul_params.h"
#include "kernels/ptx/cp_async_part.cuh"
#include "kernels/ptx/cp_async_word.cuh"

namespace opfacade {

// The lines of an operand in one tile. kLines: most lines. kThreads: threads that copy them.
template <int kLines, int kThreads>
struct DirectLines {
  const uint16_t* data;  // first element of the first line
  int64_t step, each;    // elements between lines, and between elements of a line
  int lines, size;       // size: elements per line
  bool chunks, odd;      // odd: a line may begin between two words

  // first: index of the first line. end: number of lines of the operand.
  __device__ __forceinline__ DirectLines(const MatmulOperand& of, int batch, int first, int end, int k)
      : data(static_cast<const uint16_t*>(of.data) + batch * of.batch + first * of.row), step(of.row), each(of.k), lines(min(end - first, kLines)), size(k) {
    const uint64_t places = reinterpret_cast<uintptr_t>(of.data) | 2 * static_cast<uint64_t>(of.row | of.batch);
    chunks = each == 1 && places % 16 == 0, odd = each == 1 && places % 4 != 0;
  }
  // Whether a line begins between two words; lines that are eight apart are equal.
  __device__ __forceinline__ bool begins_odd(int line) const {
    return each == 1 && reinterpret_cast<uintptr_t>(data + line * step) % 4 != 0;
  }
  // Copies the elements of a step of k, which begins at element `from`, and zeros up to a multiple of 16.
  __device__ __forceinline__ void copy(uint32_t to, int from, int thread) const {
    const int words = (min(size - from, kDirectStep) + 15) / 16 * 8, bits = words > 32 ? 6 : words > 16 ? 5 : words > 8 ? 4 : 3;
    if (chunks) {
      for (int i = thread; i < lines << (bits - 2); i += kThreads) chunk(to, i >> (bits - 2), i & ((1 << (bits - 2)) - 1), words, from);
      return;
    }
    for (int i = thread; i < lines << bits; i += kThreads) word(to, i >> bits, i & ((1 << bits) - 1), words, from);
    for (int line = thread; odd && line < lines; line += kThreads) word(to, line, words, words + 1, from);
  }
  // Stores the first element of each line that begins between two words: the word also contains an element before the line.
  __device__ __forceinline__ void copy_first(uint32_t to, int thread) const {
    for (int line = thread; odd && line < lines; line += kThreads)
      if (begins_odd(line)) store_shared_4(to + line * kDirectPitch, uint32_t{data[line * step]} << 16);
  }

 private:
  __device__ __forceinline__ void chunk(uint32_t to, int line, int at, int words, int from) const {
    const int left = size - from - 8 * at;
    if (4 * at < words) cp_async_part(to + line * kDirectPitch + 16 * at, data + line * step + (left > 0 ? size - left : 0), min(max(left, 0), 8) * 2);
  }
  __device__ __forceinline__ void word(uint32_t to, int line, int at, int words, int from) const {
    if (at >= words) return;
    const uint16_t* begin = data + line * step;
    const uint32_t place = to + line * kDirectPitch + 4 * at;
    const int over = begins_odd(line), first = from + 2 * at - over, count = min(max(size - first, 0), 2);
    if (each != 1) store_shared_4(place, element(begin, first) | element(begin, first + 1) << 16);
    else if (first >= 0) cp_async_word(place, begin + (count > 0 ? first : over), 2 * count);
  }
  __device__ __forceinline__ uint32_t element(const uint16_t* begin, int at) const { return at < size ? begin[at * each] : 0; }
};

// Four consecutive elements of a line, from shared address `at`. odd: a line may begin between two words. selector: of the bytes
// of this line in two consecutive words.
__device__ __forceinline__ uint2 direct_four(uint32_t at, bool odd, uint32_t selector) {
  const uint2 found = load_shared_8(at);
  if (!odd) return found;
  const uint32_t behind = load_shared_4(at + 8);
  return make_uint2(__byte_perm(found.x, found.y, selector), __byte_perm(found.y, behind, selector));
}

}  // namespace opfacade
