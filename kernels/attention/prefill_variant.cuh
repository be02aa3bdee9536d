// A variant and a packed mask in a prefill kernel. C::Variant is made of the user's expressions (csrc/attention/variant.jinja):
//
//   kLogits, kMask, kQuery: which there are; kPacked: whether the call has a mask; kHead, kRow, kKey: parameters of each kind
//   float logits(float score, row, key), bool mask(row, key), float query(float query, row)
//
// A kernel without C::Variant has none of this. Everything here may only hide more than row_range does.
#pragma once
#include "kernels/attention/prefill_schedule.cuh"
#include "kernels/attention/prefill_variant_params.h"
#include "kernels/common/expression.cuh"

namespace opfacade {

struct NoVariant {
  static constexpr bool kLogits = false, kMask = false, kQuery = false, kPacked = false;
  static constexpr int kHead = 0, kRow = 0, kKey = 0;
};

template <class C, class = void>
struct VariantOf {
  using Type = NoVariant;
};
template <class C>
struct VariantOf<C, decltype(static_cast<void>(C::Variant::kLogits))> {
  using Type = typename C::Variant;
};
template <class C>
using Variant = typename VariantOf<C>::Type;

template <class C>
constexpr bool kHidesMore = Variant<C>::kMask || Variant<C>::kPacked;

// Arrays of no elements do not exist.
constexpr int at_least_one(int n) { return n > 0 ? n : 1; }

// What expressions know of a row of q and one of its heads.
template <class V>
struct VariantRow {
  int32_t q_pos, q_len, kv_len, head, kv_head;
  float head_param[at_least_one(V::kHead)];
  int32_t row_param[at_least_one(V::kRow)];
};

// And of a key: its place is base + step, where the steps of a tile are constants, so that a conversion of base - x is made
// once a row.
template <class V>
struct VariantKey {
  int32_t base;
  int step;
  int32_t param[at_least_one(V::kKey)];
  __device__ __forceinline__ int32_t kv_pos() const { return base + step; }
};

// The parameters of a kernel with a variant come behind those of every prefill.
__device__ __forceinline__ const VariantOperands& variant_of(const PrefillParams& p) {
  return static_cast<const VariedPrefillParams&>(p).variant;
}

// row: of the tile; one past its rows is taken for the last, so that nothing is read that is not there.
template <class C>
__device__ __forceinline__ VariantRow<Variant<C>> variant_row(const PrefillParams& p, const RowTile& tile, int kv_head, int row) {
  using V = Variant<C>;
  const VariantOperands& operands = variant_of(p);
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

// table: parameters of the keys of a tile, [kKey][kTileKv].
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

// Parameters of one key into the table; page and slot are its place in the cache.
template <class C>
__device__ __forceinline__ void fetch_key_params(const PrefillParams& p, int32_t* table, int key, int page, int slot) {
  const VariantOperands& operands = variant_of(p);
#pragma unroll
  for (int i = 0; i < Variant<C>::kKey; ++i)
    table[i * C::kTileKv + key] = operands.key[i * operands.key_count + page * operands.key_page + slot];
}

// 32 bits of a packed mask from `bit` on, the first the lowest. What lies past the end of the mask is hidden.
__device__ __forceinline__ uint32_t mask_word(const VariantOperands& operands, int64_t word) {
  if (word < 0) return 0;
  if (word * 4 + 4 <= operands.mask_bytes) return reinterpret_cast<const uint32_t*>(operands.mask)[word];
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i)
    if (word * 4 + i < operands.mask_bytes) out |= uint32_t{operands.mask[word * 4 + i]} << 8 * i;
  return out;
}

// The bits of one row for kTileKv keys from `start` on. Only those of keys that the request has mean anything.
template <class C>
__device__ __forceinline__ void fetch_row_bits(const PrefillParams& p, const RowTile& tile, int row, int start,
                                               uint32_t (&bits)[C::kTileKv / 32]) {
  const VariantOperands& operands = variant_of(p);
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

// What a row sees of one tile beside its range: made once a row, asked for each key.
template <class C>
struct RowSight {
  using V = Variant<C>;
  VariantRow<V> row;
  uint32_t bits[C::kTileKv / 32];
  const int32_t* table;
  int start;

  __device__ __forceinline__ RowSight(const PrefillParams& p, const RowTile& tile, int kv_head, int row_of_tile,
                                      const int32_t* table, int start)
      : table(table), start(start) {
    if constexpr (V::kMask) row = variant_row<C>(p, tile, kv_head, row_of_tile);
    if constexpr (V::kPacked) fetch_row_bits<C>(p, tile, row_of_tile, start, bits);
  }

  // The key is column + step of the tile: column at most 7, step a multiple of 8 and 0 or 1 that column leaves room for.
  __device__ __forceinline__ bool sees(int column, int step) const {
    bool out = true;
    if constexpr (V::kPacked) {
      uint32_t word = bits[0];
#pragma unroll
      for (int i = 1; i < C::kTileKv / 32; ++i)
        if (step / 32 == i) word = bits[i];
      out = word >> (column + step % 32) & 1;
    }
    if constexpr (V::kMask) out = out && V::mask(row, variant_key<C>(table, start, column, step));
    return out;
  }
};

}  // namespace opfacade
