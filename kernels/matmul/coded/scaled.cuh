// Codes of four bits to e4m3, which has each of their numbers, for products with rows of e4m3. A part of k whose codes share a scale
// has sums of its own, which the scale multiplies in f32: no number is rounded, and no scale needs a place in eight bits. The one
// scale of a column multiplies its whole sum, behind the last part.
#pragma once
#include "kernels/matmul/coded/decode.cuh"
#include "kernels/ptx/wgmma_kept_bytes.cuh"

namespace opfacade {

// The numbers of four codes of a quad of threads: word byte i is the i-th of them.
template <class Q>
struct ByteNumbers {
  static constexpr bool kE2m1 = Q::kCode == Code::kE2M1;
  // Sizes of codes 0 to 7, and of two's complement of codes 8 to 15: 8, 7, .. 1.
  static constexpr uint32_t kLow = kE2m1 ? 0x3c383000u : 0x44403800u, kHigh = kE2m1 ? 0x4c484440u : 0x4e4c4a48u;
  static constexpr uint32_t kLowBelow = 0x4a4c4e50u, kHighBelow = 0x38404448u;

  // Bytes 2 * t and 2 * t + 1 of the eight of `low` and `high`, in which t is a thread's place in its quad.
  static __device__ __forceinline__ uint32_t of(uint32_t low, uint32_t high) {
    const uint32_t t = threadIdx.x % 4 * 2, wide = __byte_perm(low, high, t * 0x11 | (t + 1) * 0x1100);
    const uint32_t code = __byte_perm(low, high, t | (t + 1) << 4) & 0x7777u;
    const uint32_t sign = (wide << 4 & 0x00800080u) | (wide & 0x80008000u), size = __byte_perm(kLow, kHigh, code);
    if constexpr (kE2m1) return size | sign;
    const uint32_t below = sign - (sign >> 7);  // seven bits of each negative number
    return sign | (size & ~below) | (__byte_perm(kLowBelow, kHighBelow, code) & below);
  }
};

// A scale of a thread's two columns each.
template <class C>
struct PartFactors {
  using Entry = typename CodeTables<C>::Entry;
  float factor;
  __device__ __forceinline__ void take(const Entry& entry) { factor = Stored<typename C::Codes::Scale>::load(entry.scale); }
};

// The A operand of the four k-steps of panel `panel`, of 128 elements. line: see PanelCodes.
template <class C>
__device__ __forceinline__ void decode_bytes(uint32_t (&a)[16], uint32_t line, int panel) {
#pragma unroll
  for (int step = 0; step < 4; ++step)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 w = load_shared_16((line ^ (4 * panel + step) * 16) + half * 1024);
      a[4 * step + half] = ByteNumbers<typename C::Codes>::of(w.x, w.y);
      a[4 * step + 2 + half] = ByteNumbers<typename C::Codes>::of(w.z, w.w);
    }
}

// Adds the products of a panel. x: the shared address of that of x. Bits do not depend on the number of rows.
template <class C>
__device__ __forceinline__ void multiply_scaled(float (&sums)[C::kTokens / 2], PartFactors<C> (&factors)[2], const CodeTables<C>& tables, uint32_t line, uint32_t x, int stage, int panel) {
  constexpr int kSlot = C::Codes::kSlot, kPart = kSlot == 0 ? 128 : kSlot, kSteps = kPart / 32;
  uint32_t a[16];
  decode_bytes<C>(a, line, panel);
  const Descriptors rows(panel_descriptor(x, 1024, 0), 32);
#pragma unroll
  for (int part = 0; part < 128 / kPart; ++part) {
    float found[C::kTokens / 2];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) WgmmaKeptBytes<C::kTokens>::rs(found, a + 4 * (part * kSteps + step), rows, part * kSteps + step, step > 0);
    wgmma_commit();
    if constexpr (kSlot != 0) {
      const int slot = (panel * 128 + part * kPart) / kPart;
      factors[0].take(tables.of(0, stage, slot)), factors[1].take(tables.of(1, stage, slot));
    }
    wgmma_wait<0>();
    keep_alive(a), pin(found);
#pragma unroll
    for (int i = 0; i < C::kTokens / 2; ++i) sums[i] = kSlot == 0 ? sums[i] + found[i] : fmaf(found[i], factors[i % 4 / 2].factor, sums[i]);
  }
}

}  // namespace opfacade
