// Converts 4-bit codes to e4m3, which represents each of them exactly, for products with rows of e4m3. Each part of k whose
// codes share a scale is summed separately, and its sum is multiplied by the scale in f32: no number is rounded, and no scale
// is converted to eight bits. If a column has only one scale, it multiplies the whole sum, after the last part.
#pragma once
#include "kernels/matmul/coded/group_sums.cuh"
#include "kernels/ptx/wgmma_kept_bytes.cuh"

namespace opfacade {

// Converts four codes to e4m3: byte i of the result is the number of code i of this thread.
template <class Q>
struct ByteNumbers {
  static constexpr bool kE2m1 = Q::kCode == Code::kE2M1;
  // Magnitudes of codes 0 to 7, and of two's complement codes 8 to 15: 8, 7, .. 1.
  static constexpr uint32_t kLow = kE2m1 ? 0x3c383000u : 0x44403800u, kHigh = kE2m1 ? 0x4c484440u : 0x4e4c4a48u;
  static constexpr uint32_t kLowBelow = 0x4a4c4e50u, kHighBelow = 0x38404448u;

  // Converts bytes 2 * t and 2 * t + 1 of the eight bytes in `low` and `high`. t: index of the thread in its quad.
  static __device__ __forceinline__ uint32_t of(uint32_t low, uint32_t high) {
    const uint32_t t = threadIdx.x % 4 * 2, wide = __byte_perm(low, high, t * 0x11 | (t + 1) * 0x1100);
    const uint32_t code = __byte_perm(low, high, t | (t + 1) << 4) & 0x7777u;
    const uint32_t sign = (wide << 4 & 0x00800080u) | (wide & 0x80008000u), size = __byte_perm(kLow, kHigh, code);
    if constexpr (kE2m1) return size | sign;
    const uint32_t below = sign - (sign >> 7);  // 0x7f in the byte of each negative number
    return sign | (size & ~below) | (__byte_perm(kLowBelow, kHighBelow, code) & below);
  }
};

// Decodes the A operand of the four k-steps of panel `panel`, which has 128 elements. line: see PanelCodes.
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

// Multiplies a panel and adds the scaled products to `sums`. x: shared address of the panel of x. Bits do not depend on the
// number of rows.
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
