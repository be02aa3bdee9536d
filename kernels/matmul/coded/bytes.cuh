// Decodes e4m3 codes into registers as the A operand of mma.sync. A k-step has sixteen bytes per column: all four threads of a
// quad read them, and each selects four. The bits of a code are shifted into a small float of the type of x, which is then
// multiplied by a power of two. All GPUs since sm_80 have the necessary instructions.
#pragma once
#include "kernels/matmul/coded/decode.cuh"

namespace opfacade {

// Decodes the four codes of a word, and multiplies them by the scale if C::Codes::kScaled.
template <class C>
__device__ __forceinline__ void numbers_of_four(uint32_t (&found)[2], uint32_t four, const Decoder<C>& decoder) {
  using T = typename C::T;
  constexpr bool kHalf = Decoder<C>::kHalf;
  constexpr uint32_t kTwice = 0x10001, kSize = (kHalf ? 0x3f80u : 0x07f0u) * kTwice, kPower = (kHalf ? 0x5c00u : 0x7b80u) * kTwice;
  const uint32_t nan = ((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t high = __byte_perm(four, 0, i == 0 ? 0x1404 : 0x3424);
    const uint32_t made = (high & 0x8000u * kTwice) | (high >> (kHalf ? 1 : 4) & kSize);
    found[i] = Halves<T>::times(made, kPower);
    if constexpr (C::Codes::kScaled && Decoder<C>::kPacked) found[i] = Halves<T>::times(found[i], decoder.scales);
    if constexpr (C::Codes::kScaled && !Decoder<C>::kPacked) {
      const float low = T::unpack(static_cast<uint16_t>(found[i])), top = T::unpack(static_cast<uint16_t>(found[i] >> 16));
      found[i] = T::pack(low * decoder.factor, top * decoder.factor);
    }
  }
  if (nan == 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t top = __byte_perm(nan, 0, i == 0 ? 0x1404 : 0x3424);
    found[i] |= top - (top >> 15);
  }
}

// Decodes bytes 2 t and 2 t + 1 (found[0]) and bytes 2 t + 8 and 2 t + 9 (found[1]) of a k-step. t: index of the thread in its
// quad.
template <class C>
__device__ __forceinline__ void decode_four(uint32_t (&found)[2], const uint4& codes, const Decoder<C>& decoder) {
  const uint32_t thread = threadIdx.x % 4, pick = thread % 2 == 0 ? 0x5410 : 0x7632;
  numbers_of_four<C>(found, __byte_perm(thread < 2 ? codes.x : codes.y, thread < 2 ? codes.z : codes.w, pick), decoder);
}

// Like decode_panel, for codes of one byte. line: shared address of the first codes of this thread's first column.
template <class C>
__device__ __forceinline__ void decode_bytes(uint32_t (&a)[16], Decoder<C> (&decoder)[2], const CodeTables<C>& tables, int stage, int panel, uint32_t line) {
  constexpr int kSlot = C::Codes::kSlot == 0 ? 1024 : C::Codes::kSlot;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int chunk = 4 * panel + step, at = 16 * chunk;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (C::Codes::kSlot != 0 && at % kSlot == 0) decoder[half].take(tables.of(half, stage, at / kSlot));
      const uint4 codes = load_shared_16((line ^ chunk % 8 * 16) + chunk / 8 * kCodesPart + half * 1024);
      uint32_t found[2];
      decode_four<C>(found, codes, decoder[half]);
      a[4 * step + half] = found[0], a[4 * step + half + 2] = found[1];
    }
  }
}

}  // namespace opfacade
