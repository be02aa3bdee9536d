// Axes of a map on the host, for each call: axes of extent 1 are dropped, contiguous neighbours are merged, and the strides
// select the path. One binary serves every rank, shape and layout.
#pragma once
#include "csrc/common/launch.h"
#include "csrc/common/operands.h"
#include "kernels/elementwise/map_params.h"

namespace opfacade {

// A divider is exact for dividends below 2^31.
inline MapDivider divider_of(int64_t extent) {
  if (extent <= 1 || extent >= int64_t{1} << 31) return {0, 0};
  uint32_t shift = 0;
  while ((int64_t{1} << shift) < extent) ++shift;
  const uint64_t more = (uint64_t{1} << 32) * ((uint64_t{1} << shift) - static_cast<uint64_t>(extent)) / static_cast<uint64_t>(extent);
  return {static_cast<uint32_t>(more + 1), shift};
}

inline uint64_t bits_of_f64(double value) {
  uint64_t bits;
  __builtin_memcpy(&bits, &value, 8);
  return bits;
}
inline uint64_t bits_of_f32(double value) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  __builtin_memcpy(&bits, &single, 4);
  return bits;
}

template <class T>
void exchange(T& a, T& b) {
  const T first = a;
  a = b, b = first;
}

template <int kOperands, int kScalars>
class MapAxes {
 public:
  using Params = MapParams<kOperands, kScalars>;

  MapAxes(Params& p, int first_output, bool keeps_axis_0) : p_(p), first_output_(first_output), kept_(keeps_axis_0 ? 1 : 0) {}

  void add(int64_t extent) { p_.extent[p_.rank++] = extent; }

  // Drops axes of extent 1, sorts the others by the first output's strides, and merges axes that are contiguous in all
  // operands.
  void collapse() {
    drop();
    sort();
    merge();
    if (p_.rank == 0) add(1);
  }
  void finish() {
    for (int axis = 0; axis < p_.rank; ++axis) p_.divider[axis] = divider_of(p_.extent[axis]);
  }

  // Whether every operand is dense along the last axis or has one element there.
  bool has_rows() const {
    for (int k = 0; k < kOperands; ++k) {
      const int64_t step = p_.stride[k][p_.rank - 1];
      if (step > 1 || (k >= first_output_ && step != 1 && p_.extent[p_.rank - 1] > 1)) return false;
    }
    return true;
  }

  // Cuts rows into vectors of `count` elements, and gives a thread `unroll` of them if enough blocks for a GPU remain. Returns
  // the number of blocks; 0 if vector indices do not fit 31 bits.
  int64_t cut_rows(int64_t count, int unroll) {
    const int64_t width = p_.extent[p_.rank - 1], lines = p_.rank > 1 ? p_.extent[p_.rank - 2] : 1, outer = p_.total / width / lines;
    const int64_t vectors = ceil_div(width + before_, count);
    if (ceil_div(p_.total, count) >= kMapNarrow / 2 || vectors >= kMapNarrow / 2 / ceil_div(p_.total, width)) return 0;
    while (p_.rank > 1 && vectors << p_.band < kMapThreads) ++p_.band;  // rows that are read together are adjacent
    const bool many = outer * lines * vectors >= int64_t{kMapThreads} * unroll * kEnoughBlocks;
    p_.each = many && (p_.rank == 1 || lines >= int64_t{unroll} << p_.band) ? unroll : 1;
    if (p_.each == 1) p_.band = 0;
    const int64_t items = p_.rank == 1 ? ceil_div(vectors, p_.each) : outer * ceil_div(lines, p_.each) * vectors;
    while (threads_ > kFewestThreads && ceil_div(items, threads_) < 2 * kEnoughBlocks) threads_ /= 2;
    const int64_t rows = ceil_div(lines, int64_t{p_.each} << p_.band) << p_.band;
    p_.vectors = static_cast<uint32_t>(vectors), p_.by_vectors = divider_of(vectors);
    p_.rows = static_cast<uint32_t>(rows), p_.by_rows = divider_of(rows);
    return ceil_div(p_.rank == 1 ? ceil_div(vectors, p_.each) : outer * rows * vectors, threads_);
  }
  // Threads per CTA: fewer than kMapThreads if multiprocessors would otherwise be idle.
  int threads() const { return threads_; }

  // Finds out whether offsets are a few 32-bit products; a vector has `count` elements.
  void find_near(int count) {
    const int last = p_.rank - 1;
    p_.near = find_steps(count) && p_.whole != 0;
    p_.lines = static_cast<uint32_t>(last > 0 ? p_.extent[0] : 1);
    p_.whole_ones = static_cast<uint32_t>(p_.extent[last] / count);
  }

  // If vectors are unaligned and offsets are a few 32-bit products, cuts the elements into CTAs, and gives a thread `unroll`
  // elements if most multiprocessors still get a CTA. Returns the number of CTAs; 0 otherwise.
  int64_t cut_apart(int unroll) {
    if (p_.whole != 0 || !find_steps(1)) return 0;
    const int64_t width = p_.extent[p_.rank - 1];
    p_.vectors = static_cast<uint32_t>(width), p_.by_vectors = divider_of(width), p_.whole_ones = static_cast<uint32_t>(p_.total);
    p_.each = p_.total >= int64_t{kMapThreads} * unroll * kFewBlocks ? unroll : 1;
    while (threads_ > kFewestThreads && ceil_div(p_.total, threads_ * p_.each) < kFewBlocks) threads_ /= 2;
    return ceil_div(p_.total, threads_ * p_.each);
  }

  // Counts tiles of `side` x `side` elements; 0 if the number does not fit 31 bits.
  int64_t cut_tiles(int64_t side) {
    const int64_t across = ceil_div(p_.extent[p_.rank - 1], side), down = ceil_div(p_.extent[p_.rank - 2], side);
    int64_t tiles = across * down;
    for (int axis = 0; axis < p_.rank - 2; ++axis) tiles *= p_.extent[axis];
    if (tiles >= kMapNarrow) return 0;
    p_.vectors = static_cast<uint32_t>(across), p_.by_vectors = divider_of(across);
    p_.rows = static_cast<uint32_t>(down), p_.by_rows = divider_of(down);
    return tiles;
  }
  // Assigns shared memory to the tiles of transposed inputs; returns the total bytes.
  unsigned place_tiles(unsigned side, const int (&size)[kOperands]) {
    unsigned bytes = 0;
    for (int k = 0; k < first_output_; ++k)
      if (p_.transposed >> k & 1) p_.tile_at[k] = bytes, bytes += side * side * size[k];
    return bytes;
  }

  // Finds the operands whose vectors of `count` elements are aligned: in every row, or in every column of a transposed operand.
  // partial: inputs that lack axes by the problem's definition.
  void find_wide(const int (&size)[kOperands], int count, uint32_t partial) {
    p_.wide = 0;
    for (int k = 0; k < kOperands; ++k) {
      const int along = p_.rank - 1 - static_cast<int>(p_.transposed >> k & 1);
      const int64_t bytes = int64_t{count} * size[k], access = bytes < 16 && along == p_.rank - 1 ? bytes : 16;
      bool fits = p_.stride[k][along] == 1 && reinterpret_cast<uintptr_t>(p_.operand[k]) % access == 0;
      for (int axis = 0; axis < p_.rank; ++axis) fits = fits && (axis == along || p_.stride[k][axis] * size[k] % access == 0);
      if (fits) p_.wide |= 1u << k;
    }
    find_shared();
    find_spans();
    p_.whole = 1;
    for (int k = 0; k < kOperands; ++k)
      if (!(p_.wide >> k & 1) && (!(partial >> k & 1) || p_.stride[k][p_.rank - 1] != 0)) p_.whole = 0;
  }

  // If rows of the first result are unaligned, vectors begin at its aligned addresses, and the first vector begins before its
  // row. size: bytes per element. Rows of a few vectors are excluded, because the extra vector would cost too much.
  void find_peeled(int size, int count) {
    const bool aligned = p_.wide >> first_output_ & 1;
    p_.peels = !aligned && p_.extent[p_.rank - 1] >= kPeeled * count;
    before_ = p_.peels != 0 ? (count * size < 16 ? count : 16 / size) - 1 : 0;
  }

  // Finds inputs that are contiguous along one other axis, which becomes the second-to-last. False if there is none, or if the
  // outputs are not contiguous along the last axis.
  bool transposes() {
    const int last = p_.rank - 1;
    if (last < 1) return false;
    for (int k = first_output_; k < kOperands; ++k)
      if (p_.stride[k][last] != 1) return false;
    int along = -1;
    for (int k = 0; k < first_output_ && along < 0; ++k)
      for (int axis = kept_; axis < last && p_.stride[k][last] > 1; ++axis)
        if (p_.stride[k][axis] == 1 && p_.extent[axis] > 1) along = axis;
    if (along < 0 || p_.extent[along] < 8 || p_.extent[last] < 8) return false;
    for (; along < last - 1; ++along) swap(along, along + 1);
    for (int k = 0; k < first_output_; ++k)
      if (p_.stride[k][last] > 1 && p_.stride[k][last - 1] == 1) p_.transposed |= 1u << k;
    return true;
  }

 private:
  static constexpr int64_t kEnoughBlocks = 528, kFewBlocks = 132;  // half of the CTAs that an H100 holds, and one per SM
  static constexpr int kFewestThreads = 64;
  static constexpr int64_t kPeeled = 4;  // vectors of a row

  // Finds the distances, in elements, between rows and between vectors. Returns whether they fit 31 bits and all rows are
  // valid.
  bool find_steps(int count) {
    const int last = p_.rank - 1;
    bool near = p_.rank <= 2 && p_.num_valid == nullptr && p_.total < kMapNarrow;
    for (int k = 0; k < kOperands; ++k) {
      const int64_t step = last > 0 ? p_.stride[k][0] : 0;
      near = near && step >= 0 && step < kMapNarrow;
      p_.row_step[k] = static_cast<uint32_t>(step), p_.column_step[k] = static_cast<uint32_t>(p_.stride[k][last] * count);
    }
    return near;
  }
  // Finds inputs that are the same in all rows of a thread.
  void find_shared() {
    for (int k = 0; k < first_output_ && p_.rank > 1; ++k)
      if (p_.stride[k][p_.rank - 2] == 0) p_.shared |= 1u << k;
  }
  void find_spans() {
    for (int k = 0; k < kOperands; ++k) {
      p_.span[k] = 1;
      for (int axis = 0; axis < p_.rank; ++axis) p_.span[k] += (p_.extent[axis] - 1) * p_.stride[k][axis];
    }
  }
  void drop() {
    int rank = 0;
    for (int axis = 0; axis < p_.rank; ++axis)
      if (p_.extent[axis] != 1 || axis < kept_) move(axis, rank++);
    p_.rank = rank;
  }
  void sort() {
    for (int i = kept_ + 1; i < p_.rank; ++i)
      for (int j = i; j > kept_ && p_.stride[first_output_][j - 1] < p_.stride[first_output_][j]; --j) swap(j - 1, j);
  }
  void merge() {
    int at = 0;
    for (int axis = 1; axis < p_.rank; ++axis) {
      if (at >= kept_ && together(at, axis)) {
        p_.extent[at] *= p_.extent[axis];
        for (int k = 0; k < kOperands; ++k) p_.stride[k][at] = p_.stride[k][axis];
      } else {
        move(axis, ++at);
      }
    }
    if (p_.rank > 0) p_.rank = at + 1;
  }
  bool together(int outer, int inner) const {
    for (int k = 0; k < kOperands; ++k)
      if (p_.stride[k][outer] != p_.stride[k][inner] * p_.extent[inner]) return false;
    return true;
  }
  void move(int from, int to) {
    p_.extent[to] = p_.extent[from];
    for (int k = 0; k < kOperands; ++k) p_.stride[k][to] = p_.stride[k][from];
  }
  void swap(int a, int b) {
    exchange(p_.extent[a], p_.extent[b]);
    for (int k = 0; k < kOperands; ++k) exchange(p_.stride[k][a], p_.stride[k][b]);
  }

  Params& p_;
  const int first_output_, kept_;
  int threads_ = kMapThreads;
  int64_t before_ = 0;  // elements of a vector that may precede its row
};

}  // namespace opfacade
