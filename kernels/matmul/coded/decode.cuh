// Decodes 4-bit codes into registers as the A operand of wgmma. A k-step has eight bytes per column. A thread needs bytes t and
// t + 4 of both of its columns, where t is its index in the quad. All threads of a quad read the same sixteen bytes (two
// k-steps), and each selects its own.
#pragma once
#include "kernels/matmul/coded/tables.cuh"
#include "kernels/ptx/halves.cuh"

namespace opfacade {

template <class A, class B>
struct SameType {
  static constexpr bool kIs = false;
};
template <class A>
struct SameType<A, A> {
  static constexpr bool kIs = true;
};

// Converts codes of one group to numbers. A code is inserted into the low mantissa bits of 128, or of 1024 for packed f16, so
// that the float is exactly 128 plus the code. If scales have the type of x and zero points are codes (kPacked), the difference
// from the zero point is exact in that type and the product with the scale is rounded once, as in f32 arithmetic; otherwise
// numbers are f32 until they are packed. A code of e2m1 is shifted into a small float of the type of x, which is multiplied by
// 2^126 (2^14 in f16), and then by the scale in the type of x. Without kScaled, the numbers are the codes minus their zero
// points.
template <class C>
struct Decoder {
  using T = typename C::T;
  using Q = typename C::Codes;
  using Entry = typename CodeTables<C>::Entry;
  static constexpr bool kHalf = SameType<T, F16>::kIs, kE2m1 = Q::kCode == Code::kE2M1;
  static constexpr bool kPacked = (!Q::kScaled || SameType<T, typename Q::Scale>::kIs) && (Q::kZero == ZeroPoint::kNone || Q::kWholeZero);
  static constexpr bool kReads = Q::kScaled || Q::kZero != ZeroPoint::kNone;  // numbers depend on tables
  static constexpr uint32_t kSign = Q::kCode == Code::kSigned ? 8 : 0;  // offset that makes two's complement codes nonnegative
  static constexpr uint32_t kMagic = kPacked && kHalf ? 0x6400 : 0x4300, kTwice = 0x10001;
  uint32_t scales, bases;  // in both halves
  float factor, shift;

  __device__ __forceinline__ void take(const Entry& entry) {
    if constexpr (!Q::kScaled) {
      bases = (kMagic | entry.zero) * kTwice;
    } else if constexpr (kE2m1) {
      const float scale = Stored<typename Q::Scale>::load(entry.scale);
      scales = T::pack(scale, scale);
    } else if constexpr (kPacked) {
      scales = entry.scale * kTwice, bases = (kMagic | (Q::kZero == ZeroPoint::kNone ? kSign : entry.zero)) * kTwice;
    } else {
      factor = Stored<typename Q::Scale>::load(entry.scale), shift = static_cast<float>(Stored<typename Q::Zero>::load(entry.zero));
    }
  }
  // Decodes the two codes of a byte; the other bytes of its word are zero. both: kBothCodes, in a register.
  __device__ __forceinline__ uint32_t two(uint32_t byte, uint32_t both) const {
    if constexpr (kE2m1) {
      constexpr int kExponent = kHalf ? 9 : 6;  // bit position to which bit 0 of a code is shifted
      const uint32_t made = (byte * (0x1001u << kExponent) & (7u << kExponent) * kTwice) | (byte * 0x1001000u & 0x80008000u);
      const uint32_t number = Halves<T>::times(made, (kHalf ? 0x7400u : 0x7e80u) * kTwice);
      return Q::kScaled ? Halves<T>::times(number, scales) : number;
    }
    const uint32_t made = byte * 0x1001u & both ^ (kMagic | kSign) * kTwice;
    if constexpr (!Q::kScaled) return Halves<T>::less(made, Q::kZero == ZeroPoint::kNone ? (kMagic | kSign) * kTwice : bases);
    if constexpr (kPacked) return Halves<T>::times(Halves<T>::less(made, bases), scales);
    return T::pack(number(__uint_as_float(made << 16)), number(__uint_as_float(made & 0xffff0000u)));
  }

 private:
  // The number of a code in f32 arithmetic. made: 128 plus kSign plus the code.
  __device__ __forceinline__ float number(float made) const {
    constexpr float kBase = 128.f + kSign;
    if constexpr (Q::kWholeZero) return (made - (kBase + shift)) * factor;
    if constexpr (Q::kZero == ZeroPoint::kSubtracted) return (made - kBase - shift) * factor;
    if constexpr (Q::kZero == ZeroPoint::kAdded) return (made - kBase) * factor + shift;
    return (made - kBase) * factor;
  }
};

// The codes of two k-steps, for both columns of a thread. line: shared address of chunk 0 of the first column (see
// panel_address). chunk: index of the pair of k-steps in the stage.
struct ChunkCodes {
  uint4 found[2];

  __device__ __forceinline__ ChunkCodes(uint32_t line, int chunk) {
#pragma unroll
    for (int half = 0; half < 2; ++half) found[half] = load_shared_16((line ^ chunk * 16) + half * 1024);
  }
};

// The codes of four k-steps.
struct PanelCodes {
  ChunkCodes chunks[2];
  __device__ __forceinline__ PanelCodes(uint32_t line, int panel) : chunks{{line, 2 * panel}, {line, 2 * panel + 1}} {}
};

constexpr uint32_t kBothCodes = 0x000f000f;
// Returns kBothCodes from a register; ptxas would move a constant that it knows to a register at each use.
__device__ __forceinline__ uint32_t both_codes() { return __shfl_sync(0xffffffffu, threadIdx.x % 32 == 0 ? kBothCodes : 0, 0); }

// Decodes the A operand of k-step `step` of panel `panel` of a stage. codes: the codes of this step and of its neighbour.
template <class C>
__device__ __forceinline__ void decode_step(uint32_t* a, const ChunkCodes& codes, Decoder<C> (&decoder)[2], const CodeTables<C>& tables, uint32_t both, int stage, int panel, int step) {
  constexpr int kSlot = C::Codes::kSlot == 0 ? 1024 : C::Codes::kSlot;  // kSlot 0: no group begins inside a stage
  const uint32_t own = threadIdx.x % 4 | 0x4440u;  // one byte
  const int k = panel * 64 + step * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4& w = codes.found[half];
    if (Decoder<C>::kReads && C::Codes::kSlot != 0 && k % kSlot == 0) decoder[half].take(tables.of(half, stage, k / kSlot));
    a[half] = decoder[half].two(__byte_perm(step % 2 == 0 ? w.x : w.z, 0, own), both);
    a[half + 2] = decoder[half].two(__byte_perm(step % 2 == 0 ? w.y : w.w, 0, own), both);
  }
}

// Decodes the A operand of the k-steps of panel `panel` of a stage.
template <class C>
__device__ __forceinline__ void decode_panel(uint32_t (&a)[16], const PanelCodes& codes, Decoder<C> (&decoder)[2], const CodeTables<C>& tables, uint32_t both, int stage, int panel) {
#pragma unroll
  for (int step = 0; step < 4; ++step) decode_step<C>(a + 4 * step, codes.chunks[step / 2], decoder, tables, both, stage, panel, step);
}

}  // namespace opfacade
