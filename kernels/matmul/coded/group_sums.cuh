// Sums of groups of 4-bit codes and rows of 16 bits. Operands are the codes, minus their zero points, which the type of x
// represents exactly. The products of a group are summed separately, and the sum is multiplied by the scale of the group in f32
// when it is added to the sum of the segment: no number is rounded. Groups consist of slots (see CodeTables), each of which is
// summed like a group.
#pragma once
#include "kernels/matmul/coded/decode.cuh"

namespace opfacade {

// The scale of one of the two columns of a thread.
template <class C>
struct PartFactors {
  using Entry = typename CodeTables<C>::Entry;
  float factor;
  __device__ __forceinline__ void take(const Entry& entry) { factor = Stored<typename C::Codes::Scale>::load(entry.scale); }
};

// The sums of a segment, to which products are added as they are.
template <class C, bool kGroups = C::kSums>
struct SegmentSums {
  using Sums = float[C::kTokens / 2];
  Sums& products;

  __device__ __forceinline__ explicit SegmentSums(Sums& of) : products(of) {}
  __device__ __forceinline__ void take(const CodeTables<C>& tables, int stage, int panel) {}
  __device__ __forceinline__ void add(int step) {}
  // Whether k-step `step` of panel `panel` of a stage is added to products before it. before: whether there are any.
  static constexpr __device__ __forceinline__ bool continues(int panel, int step, bool before) { return step > 0 || before; }
  // Whether add() must follow the k-step.
  static constexpr __device__ __forceinline__ bool ends(int panel, int step) { return false; }
};

// The sums of a segment, and the products of one slot, which are complete before add() is called.
template <class C>
struct SegmentSums<C, true> {
  static constexpr int kSlot = C::Codes::kSlot, kParts = kSlot < 64 ? 64 / kSlot : 1;  // parts of a panel that are in one slot
  using Sums = float[C::kTokens / 2];
  Sums& sums;
  Sums products;
  PartFactors<C> factors[kParts][2];

  __device__ __forceinline__ explicit SegmentSums(Sums& of) : sums(of) {}
  // Takes the scales of panel `panel` of stage `stage`.
  __device__ __forceinline__ void take(const CodeTables<C>& tables, int stage, int panel) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) factors[part][half].take(tables.of(half, stage, panel * 64 / kSlot + part));
  }
  // Adds the sums of the slot that k-step `step` of a panel ends, for all rows of x.
  __device__ __forceinline__ void add(int step) {
#pragma unroll
    for (int rows = 0; rows < C::kTokens / 8; ++rows) add(step, rows);
  }
  // Adds the sums for eight rows of x.
  __device__ __forceinline__ void add(int step, int rows) {
#pragma unroll
    for (int i = 4 * rows; i < 4 * rows + 4; ++i) sums[i] = fmaf(products[i], factors[step * 16 / kSlot % kParts][i % 4 / 2].factor, sums[i]);
  }
  static constexpr __device__ __forceinline__ bool continues(int panel, int step, bool before) { return (panel * 64 + step * 16) % kSlot != 0; }
  static constexpr __device__ __forceinline__ bool ends(int panel, int step) { return (panel * 64 + (step + 1) * 16) % kSlot == 0; }
};

}  // namespace opfacade
