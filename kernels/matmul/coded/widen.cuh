// A weight of codes of four bits as numbers of the type of x, in the workspace. Tiles of many rows would decode each code again and
// again, and each instruction of that costs its time beside products; here each code is decoded once.
#pragma once
#include "kernels/matmul/coded/decode.cuh"
#include "kernels/matmul/coded/widen_params.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

// Eight codes of a column from element k on.
template <class C>
struct WideCodes {
  uint32_t word;
  typename CodeTables<C>::Entry entry;

  // line: where the codes of the column begin.
  __device__ __forceinline__ void ask(const MatmulParams& p, const CodeTables<C>& tables, const uint8_t* line, int column, int k) {
    word = 0;
    if (k >= p.k) return;
    const uint8_t* from = line + k / 2;
    if (p.weight_wide != 0) {
      word = *reinterpret_cast<const uint32_t*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(from[i]) << 8 * i;
    }
    entry = tables.read(column, k);
  }
  __device__ __forceinline__ uint4 numbers(uint32_t both) const {
    Decoder<C> decoder;
    decoder.take(entry);
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = decoder.two(word >> 8 * i & 255, both);
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
  }
};

// p.out.data: the numbers, a line of k for each column.
template <class C>
__device__ __forceinline__ void widen_codes(const MatmulParams& p) {
  allow_dependents();
  wait_for_previous();
  const uint32_t parts = (p.k + kWidenPart - 1) / kWidenPart, count = p.batch * p.columns * parts, both = both_codes();
  for (uint32_t index = blockIdx.x * (kWidenThreads / 32) + threadIdx.x / 32; index < count; index += gridDim.x * (kWidenThreads / 32)) {
    const uint32_t line = index / parts, batch = line / p.columns;
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
