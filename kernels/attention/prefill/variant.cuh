// Variant and packed mask in a prefill kernel. C::Variant is generated from the user's expressions
// (csrc/attention/variant.jinja):
//
//   kLogits, kMask, kQuery: which expressions exist; kPacked: the call has a mask; kHead, kRow, kKey: numbers of parameters
//   float logits(float score, row, key), bool mask(row, key), float query(float query, row)
//   kLine: logits are exactly score + start(row, key) + rise(row) * key.step
//
// C::operands(p) returns the operands of the call. A kernel without C::Variant has none of this. Masks here can only hide more
// than row_range.
#pragma once
#include "kernels/attention/prefill/schedule.cuh"
#include "kernels/attention/prefill/variant_of.cuh"
#include "kernels/attention/prefill/variant_params.h"
#include "kernels/ptx/dtype.cuh"
#include "kernels/common/expression.cuh"

namespace opfacade {

// The length of an array, because C++ has no arrays of length zero.
constexpr int at_least_one(int n) { return n > 0 ? n : 1; }

// The row and head to which expressions refer.
template <class V>
struct VariantRow {
  int32_t q_pos, q_len, kv_len, head, kv_head;
  float head_param[at_least_one(V::kHead)];
  int32_t row_param[at_least_one(V::kRow)];
};

// The key position in expressions is base + step. `step` is a constant within a tile, so base - x is converted once per row.
template <class V>
struct VariantKey {
  int32_t base;
  int step;
  int32_t param[at_least_one(V::kKey)];
  __device__ __forceinline__ int32_t kv_pos() const { return base + step; }
};

// row: the row of the tile. A padding row is replaced by the last valid row, so that no read is out of bounds.
template <class C>
__device__ __forceinline__ VariantRow<Variant<C>> variant_row(const PrefillParams& p, const RowTile& tile, int kv_head, int row) {
  using V = Variant<C>;
  const VariantOperands& operands = C::operands(p);
  const int packed = tile.first + min(row, tile.rows - 1), token = packed / C::kGroup;
  VariantRow<V> out;
  out.q_pos = token + tile.kv_len - tile.q_len;
  out.q_len = tile.q_len;
  out.kv_len = tile.kv_len;
  out.kv_head = kv_head;
  out.head = kv_head * C::kGroup + packed % C::kGroup;
#pragma unroll
  for (int i = 0; i < V::kHead; ++i) out.head_param[i] = operands.head[int64_t{i} * p.heads + out.head];
#pragma unroll
  for (int i = 0; i < V::kRow; ++i) out.row_param[i] = operands.row[int64_t{i} * p.total_rows + tile.q_start + token];
  return out;
}

// Applies the query expression to two elements of q and rounds them back to their type.
template <class C>
__device__ __forceinline__ uint32_t varied_pair(uint32_t pair, const VariantRow<Variant<C>>& row) {
  using T = typename C::T;
  return T::pack(Variant<C>::query(T::unpack(static_cast<uint16_t>(pair)), row),
                 Variant<C>::query(T::unpack(static_cast<uint16_t>(pair >> 16)), row));
}

// table: the parameters of the keys of a tile, [kKey][kTileKv].
template <class C>
__device__ __forceinline__ VariantKey<Variant<C>> variant_key(const int32_t* table, int start, int column, int step) {
  using V = Variant<C>;
  VariantKey<V> out;
  out.base = start + column;
  out.step = step;
#pragma unroll
  for (int i = 0; i < V::kKey; ++i) out.param[i] = table[i * C::kTileKv + column + step];
  return out;
}

// Copies the parameters of one key into the table. `page` and `slot` locate the key in the cache.
template <class C>
__device__ __forceinline__ void fetch_key_params(const PrefillParams& p, int32_t* table, int key, int page, int slot) {
  const VariantOperands& operands = C::operands(p);
#pragma unroll
  for (int i = 0; i < Variant<C>::kKey; ++i)
    table[i * C::kTileKv + key] = operands.key[i * operands.key_count + page * operands.key_page + slot];
}

// Reads 32 bits of a packed mask from `bit` on, lowest bit first.
__device__ __forceinline__ uint32_t mask_word(const VariantOperands& operands, int64_t word) {
  if (word < 0) return 0;
  if (word * 4 + 4 <= operands.mask_bytes) return reinterpret_cast<const uint32_t*>(operands.mask)[word];
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i)
    if (word * 4 + i < operands.mask_bytes) out |= uint32_t{operands.mask[word * 4 + i]} << 8 * i;
  return out;
}

// The mask bits of one row for kTileKv keys from `start` on; valid only for keys of the request.
template <class C>
__device__ __forceinline__ void fetch_row_bits(const PrefillParams& p, const RowTile& tile, int row, int start,
                                               uint32_t (&bits)[C::kTileKv / 32]) {
  const VariantOperands& operands = C::operands(p);
  const int64_t token = (tile.first + min(row, tile.rows - 1)) / C::kGroup;
  const int64_t bit = int64_t{operands.mask_indptr[tile.request]} * 8 + token * tile.kv_len + start;
  const int shift = static_cast<int>(bit & 31);
  uint32_t low = mask_word(operands, bit >> 5);
#pragma unroll
  for (int i = 0; i < C::kTileKv / 32; ++i) {
    const uint32_t high = mask_word(operands, (bit >> 5) + i + 1);
    bits[i] = static_cast<uint32_t>((uint64_t{high} << 32 | low) >> shift);
    low = high;
  }
}

// The mask of this thread's elements of one row: bit n * 2 + i for key n * 8 + threadIdx.x % 4 * 2 + i. The loops are not
// unrolled, because registers are scarce at the call.
template <class C>
__device__ __forceinline__ uint32_t shown_elements(const PrefillParams& p, const RowTile& tile, const KvRange& range,
                                                   int kv_head, int row_of_tile, const int32_t* table, int start) {
  using V = Variant<C>;
  constexpr int kWords = C::kTileKv / 32;
  const KvRange seen = row_range<C>(p, tile, range, row_of_tile);
  const int column = threadIdx.x % 4 * 2;
  VariantRow<V> row;
  if constexpr (V::kMask) row = variant_row<C>(p, tile, kv_head, row_of_tile);
  uint32_t words[kWords];
  if constexpr (V::kPacked) fetch_row_bits<C>(p, tile, row_of_tile, start, words);
  uint32_t out = 0;
#pragma unroll 1
  for (int first = 0; first < C::kTileKv; first += 32) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int step = i / 2 * 8 + i % 2, key = start + first + column + step;
      bool sees = key >= seen.begin && key < seen.end;
      if constexpr (V::kPacked) sees = sees && (words[0] >> (column + step) & 1);
      if constexpr (V::kMask) sees = sees && V::mask(row, variant_key<C>(table + first, start + first, column, step));
      bits |= sees ? 1u << i : 0u;
    }
    out |= bits << first / 4;
    if constexpr (V::kPacked) {
#pragma unroll
      for (int i = 1; i < kWords; ++i) words[i - 1] = words[i];
    }
  }
  return out;
}

}  // namespace opfacade
