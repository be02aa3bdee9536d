// Tables of a weight whose elements have groups in any order. For each of its columns, a warp copies scales and zero points of
// all groups to shared memory, because threads would otherwise compute a 64-bit address for each element.
#pragma once
#include "kernels/matmul/code_numbers.cuh"
#include "kernels/matmul/decode_weight_params.h"
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

// The groups of the eight elements from element k on, for Q::kOrdered. place: offset of a group's entries in shared memory.
// mask: ones for the codes of elements that have a group; the others count as 0.
template <class C>
struct OrderedElements {
  using Q = typename C::Codes;
  uint32_t place[Q::kOrdered ? 8 : 1];
  uint2 mask;

  __device__ __forceinline__ OrderedElements(const MatmulParams& p, int k) {
    if constexpr (Q::kOrdered) {
      mask = make_uint2(0, 0);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int found = k + i < p.k ? p.weight_groups[k + i] : -1;
        const bool valid = static_cast<uint32_t>(found) < static_cast<uint32_t>(p.num_groups);
        place[i] = (valid ? found : p.num_groups) * 16;
        if (!CodeNumbers<C>::kBytes) mask.x |= valid ? 15u << 4 * i : 0;
        else (i < 4 ? mask.x : mask.y) |= valid ? 255u << 8 * (i % 4) : 0;
      }
    }
  }
  // The codes, with 0 for elements that have no group.
  __device__ __forceinline__ uint2 kept(uint2 codes) const { return Q::kOrdered ? make_uint2(codes.x & mask.x, codes.y & mask.y) : codes; }
};

// Addresses of the table entry of a group in a column.
template <class C>
struct TableAt {
  using Q = typename C::Codes;
  using Entry = typename CodeNumbers<C>::Entry;
  static constexpr bool kZero = Q::kZero != ZeroPoint::kNone;
  const decltype(Entry::scale)* scale;
  const decltype(Entry::zero)* zero;
  bool inside;  // the column is inside of the weight

  TableAt() = default;
  __device__ __forceinline__ TableAt(const MatmulParams& p, int batch, int column, int group) : inside(true) {
    if constexpr (Q::kScaled) scale = static_cast<decltype(scale)>(p.weight_scale.data) + batch * p.weight_scale.batch + column * p.weight_scale.row + group * p.weight_scale.part;
    if constexpr (kZero) zero = static_cast<decltype(zero)>(p.weight_zero.data) + batch * p.weight_zero.batch + column * p.weight_zero.row + group * p.weight_zero.part;
  }
  __device__ __forceinline__ void advance(const MatmulParams& p, int columns) {
    if constexpr (Q::kScaled) scale += columns * p.weight_scale.row;
    if constexpr (kZero) zero += columns * p.weight_zero.row;
  }
  __device__ __forceinline__ void advance_groups(const MatmulParams& p, int groups) {
    if constexpr (Q::kScaled) scale += groups * p.weight_scale.part;
    if constexpr (kZero) zero += groups * p.weight_zero.part;
  }
  __device__ __forceinline__ Entry load() const {
    Entry found{0, 0};
    if constexpr (Q::kScaled) found.scale = *scale;
    if constexpr (kZero) found.zero = *zero;
    return found;
  }
};

// Entries are words: the entries of a group for all columns are contiguous, so that one load reads them.
template <class C>
struct OrderedTables {
  using Q = typename C::Codes;
  using Numbers = CodeNumbers<C>;
  using Entry = typename Numbers::Entry;
  static_assert(kDecodeColumns == 4, "a vector has an entry per column");
  static constexpr bool kZero = Q::kZero != ZeroPoint::kNone;
  static constexpr int kWords = C::kEntryWords;  // 32-bit words of an entry
  static_assert(kWords == 2 || !kZero || sizeof(Entry::scale) + sizeof(Entry::zero) <= 4, "scale and zero point share a word");
  uint32_t base, plane;  // address of the entries of this warp; bytes between the first and the second words of entries
  uint4 found[Q::kOrdered ? 8 : 1][kWords];

  __device__ __forceinline__ OrderedTables(const MatmulParams& p) {
    if constexpr (Q::kOrdered) {
      plane = (p.num_groups + 1) * 16, base = smem_address(dynamic_shared()) + threadIdx.x / 32 * plane * kWords;
#pragma unroll
      for (int i = 0; i < kWords; ++i) store_shared_16(base + p.num_groups * 16 + i * plane, make_uint4(0, 0, 0, 0));
    }
  }
  // Copies the entries of these columns. at: those of group threadIdx.x % 32. Called by a whole warp.
  __device__ __forceinline__ void fill(const MatmulParams& p, TableAt<C> (&at)[4]) const {
    __syncwarp();
#pragma unroll 1
    for (int group = threadIdx.x % 32; group < p.num_groups; group += 32) {
      Entry entry[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        entry[i] = {0, 0};
        if (at[i].inside) entry[i] = at[i].load();
        at[i].advance_groups(p, 32);
      }
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        store_shared_16(base + group * 16 + i * plane, make_uint4(word(entry[0], i), word(entry[1], i), word(entry[2], i), word(entry[3], i)));
    }
    __syncwarp();
  }
  // Loads the entries of eight elements for all columns.
  __device__ __forceinline__ void read(const OrderedElements<C>& of) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < kWords; ++j) found[i][j] = load_shared_16(base + of.place[i] + j * plane);
  }
  // The entry of element `element` in column `column`.
  __device__ __forceinline__ Entry of(int element, int column) const {
    const uint32_t first = lane(found[element][0], column);
    if constexpr (kWords == 2) return {static_cast<decltype(Entry::scale)>(first), static_cast<decltype(Entry::zero)>(lane(found[element][1], column))};
    return {static_cast<decltype(Entry::scale)>(first), static_cast<decltype(Entry::zero)>(kZero ? first >> 8 * (4 - sizeof(Entry::zero)) : 0)};
  }

 private:
  // The last bytes of a word that holds a whole entry are its zero point.
  static __device__ __forceinline__ uint32_t word(const Entry& of, int i) {
    if (kWords == 2) return i == 0 ? of.scale : of.zero;
    return kZero ? of.scale | static_cast<uint32_t>(of.zero) << 8 * (4 - sizeof(Entry::zero)) : of.scale;
  }
  static __device__ __forceinline__ uint32_t lane(const uint4& of, int i) { return i == 0 ? of.x : i == 1 ? of.y : i == 2 ? of.z : of.w; }
};

}  // namespace opfacade
