// Decodes a weight of codes of any format to operands of wgmma, in the workspace, with the arithmetic of codes.cuh. Each warp
// has one part of k and decodes it for several columns: with activation order, it reads the groups of its elements once.
#pragma once
#include "kernels/matmul/code_tables.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

// Eight codes of a column, without a group for each.
template <class C>
struct EightCodes {
  using Q = typename C::Codes;
  using Numbers = CodeNumbers<C>;
  static constexpr int kBytes = Numbers::kBytes ? 8 : 4;  // bytes of eight codes
  uint32_t words[2];
  typename Numbers::Entry entry;

  // from: the first code. rest: elements from there on; at least 1. at: table entry of the group, if there is one.
  __device__ __forceinline__ void ask(const MatmulParams& p, const uint8_t* from, int rest, const TableAt<C>& at) {
    words[0] = words[1] = 0;
    if (p.weight_wide != 0 && rest >= 8) {
      if constexpr (kBytes == 4) words[0] = *reinterpret_cast<const uint32_t*>(from);
      else *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(from);
    } else {
      const int bytes = Numbers::kBytes ? rest : (rest + 1) / 2;
#pragma unroll
      for (int i = 0; i < kBytes; ++i) words[i / 4] |= i < bytes ? static_cast<uint32_t>(from[i]) << i % 4 * 8 : 0;
    }
    if constexpr (!Q::kOrdered) entry = at.load();
  }
};

// The eight elements of k of a thread, from element `first` on, in every stride-th column of a product, from column `column` on.
// Addresses advance by additions, because a product of 64 bits needs several instructions.
template <class C>
struct DecodedColumns {
  using Q = typename C::Codes;
  using Numbers = CodeNumbers<C>;
  static constexpr int kColumns = kDecodeColumns;
  const MatmulParams& p;
  int rest, column, stride;
  const uint8_t* codes;
  TableAt<C> table;
  uint16_t* out;

  __device__ __forceinline__ DecodedColumns(const MatmulParams& of, int batch, int from, int step, int first) : p(of), rest(of.k - first), column(from), stride(step) {
    codes = static_cast<const uint8_t*>(p.weight.data) + batch * p.weight.batch + column * p.weight.row + first / 8 * EightCodes<C>::kBytes;
    table = TableAt<C>(p, batch, column, Q::kOrdered ? threadIdx.x % 32 : Q::kGroup == 0 ? 0 : (first + p.group_offset) / (Q::kGroup == 0 ? 1 : Q::kGroup));
    out = static_cast<uint16_t*>(p.out.data) + batch * C::kTerms * p.out.batch + column * p.out.row + first;
  }
  // Decodes the next kColumns columns.
  __device__ __forceinline__ void decode(OrderedTables<C>& tables, const OrderedElements<C>& order) {
    EightCodes<C> found[kColumns];
    TableAt<C> at[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      at[i] = table, at[i].inside = column + i * stride < p.columns;
      if (rest > 0 && at[i].inside) found[i].ask(p, codes, rest, table);
      codes += stride * p.weight.row, table.advance(p, stride);
    }
    if constexpr (Q::kOrdered) tables.fill(p, at), tables.read(order);
#pragma unroll
    for (int i = 0; i < kColumns; ++i, out += stride * p.out.row) {
      if (rest <= 0 || !at[i].inside) continue;
      const uint2 word = Numbers::prepared(order.kept(make_uint2(found[i].words[0], found[i].words[1])));
      const auto number = [&](int j) {
        if constexpr (Q::kOrdered) return Numbers::number(word, j, Numbers::terms(tables.of(j, i)));
        return Numbers::number(word, j, Numbers::terms(found[i].entry));
      };
      // elements after the end of k have no group
      const EightNumbers numbers = Q::kOrdered || rest >= 8 ? Numbers::template eight<true>(p, rest, number) : Numbers::template eight<false>(p, rest, number);
      store_vector(out, numbers.pairs);
      if constexpr (C::kTerms == 2) store_vector(out + p.out.batch, numbers.behind);
    }
    column += kColumns * stride;
  }
};

// Writes the numbers to p.out.data: for each column of each product, lines of p.out.row numbers, which end with zeros after the
// last element of k.
template <class C>
__device__ __forceinline__ void decode_weight(const MatmulParams& p) {
  allow_dependents();
  wait_for_previous();
  const int parts = (p.k + kDecodePart - 1) / kDecodePart, warps = gridDim.x * (kDecodeThreads / 32);
  const int warp = blockIdx.x * (kDecodeThreads / 32) + threadIdx.x / 32, beside = min(parts, warps), stride = warps / beside;
  if (warp >= beside * stride) return;
  OrderedTables<C> tables(p);
  for (int part = warp % beside; part < parts; part += beside) {
    const int first = part * kDecodePart + threadIdx.x % 32 * 8;
    const OrderedElements<C> order(p, first);
    for (int batch = 0; batch < p.batch; ++batch) {
      DecodedColumns<C> columns(p, batch, warp / beside, stride, first);
      while (columns.column < p.columns) columns.decode(tables, order);
    }
  }
}

}  // namespace opfacade
