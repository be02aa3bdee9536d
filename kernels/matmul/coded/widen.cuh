// Decodes a weight of codes to numbers of the type of x, in the workspace. In products with many rows every tile would decode
// the same codes again, and decoding takes instruction slots from the products; here each code is decoded once.
#pragma once
#include "kernels/matmul/coded/bytes.cuh"
#include "kernels/matmul/coded/widen_params.h"
#include "kernels/matmul/groups.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

// A config C: T and Codes as in the config of a product; kWeightBits: bits per code; kGrouped: products of groups; kMasked: see
// groups.cuh.
// A WideCodes holds eight codes of a column, from element k.
template <class C>
struct WideCodes {
  static constexpr int kWords = C::kWeightBits / 4;
  uint32_t words[kWords];
  typename CodeTables<C>::Entry entry;

  // line: pointer to the first code of `column`.
  __device__ __forceinline__ void ask(const MatmulParams& p, const CodeTables<C>& tables, const uint8_t* line, int column, int k) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
    if (k >= p.k) return;
    const uint8_t* from = line + k / 8 * C::kWeightBits;
    if (p.weight_wide != 0) {
      if constexpr (kWords == 1) words[0] = *reinterpret_cast<const uint32_t*>(from);
      else *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < 4 * kWords; ++i) words[i / 4] |= static_cast<uint32_t>(from[i]) << i % 4 * 8;
    }
    entry = tables.read(column, k);
  }
  __device__ __forceinline__ uint4 numbers(uint32_t both) const {
    Decoder<C> decoder;
    decoder.take(entry);
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kWords == 1) pair[i] = decoder.two(words[0] >> 8 * i & 255, both);
      else if (i % 2 == 0) numbers_of_four<C>(reinterpret_cast<uint32_t(&)[2]>(pair[i]), words[i / 2], decoder);
    }
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
  }
};

// Writes the numbers to p.out.data: for each column of each weight, p.k contiguous numbers. Weights of groups without rows are
// skipped.
template <class C>
__device__ __forceinline__ void widen_codes(const MatmulParams& p) {
  allow_dependents();
  wait_for_previous();
  const uint32_t parts = (p.k + kWidenPart - 1) / kWidenPart, each = p.columns * parts, count = p.batch * each, both = both_codes();
  const uint32_t stride = gridDim.x * (kWidenThreads / 32);
  for (uint32_t index = blockIdx.x * (kWidenThreads / 32) + threadIdx.x / 32; index < count; index += stride) {
    const uint32_t line = index / parts, batch = line / p.columns;
    if constexpr (C::kGrouped) {
      const GroupRows rows = rows_of_group<C::kMasked>(p, batch);
      if (rows.first >= rows.stop) {  // continue after the last part of this group that this warp would decode
        index += ((batch + 1) * each - 1 - index) / stride * stride;
        continue;
      }
    }
    const int column = line - batch * p.columns, first = (index - line * parts) * kWidenPart + threadIdx.x % 32 * 8;
    CodeTables<C> tables(p, Tile{}, 0);
    tables.batch = batch;
    const uint8_t* codes = static_cast<const uint8_t*>(p.weight.data) + batch * p.weight.batch + column * p.weight.row;
    uint16_t* to = static_cast<uint16_t*>(p.out.data) + static_cast<int64_t>(line) * p.k;
    WideCodes<C> found[kWidenEach];
#pragma unroll
    for (int i = 0; i < kWidenEach; ++i) found[i].ask(p, tables, codes, column, first + 256 * i);
#pragma unroll
    for (int i = 0; i < kWidenEach; ++i)
      if (first + 256 * i < p.k) store_vector(to + first + 256 * i, found[i].numbers(both));
  }
}

}  // namespace opfacade
