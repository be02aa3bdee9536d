// A few contiguous elements of an operand in registers, as 32-bit words that are unpacked when an element is needed.
#pragma once
#include "kernels/common/stored.cuh"
#include "kernels/elementwise/shift.cuh"
#include "kernels/ptx/forget.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

template <class T, int kCount>
struct Pack {
  using Bits = typename Stored<T>::Bits;
  static constexpr int kSize = sizeof(Bits), kBytes = kCount * kSize, kWords = (kBytes + 3) / 4, kPerWord = kSize < 4 ? 4 / kSize : 1;
  static constexpr int kAtOnce = kWords < 4 ? kWords : 4, kAccess = 4 * kAtOnce;  // words and bytes of an access to memory
  static constexpr bool kWhole = kBytes % 4 == 0;  // otherwise elements are loaded and stored one by one
  static constexpr bool kAligned = kWhole || kBytes < 4;
  // True if an unaligned vector is loaded as aligned chunks and shifted. For elements of whole words, single loads need fewer
  // instructions.
  static constexpr bool kShifted = kSize < 4;
  uint32_t word[kWords];

  __device__ __forceinline__ Bits bits(int i) const {
    if constexpr (kSize == 8) return word[2 * i] | uint64_t{word[2 * i + 1]} << 32;
    else if constexpr (kSize == 4) return word[i];
    else return static_cast<Bits>(word[i / kPerWord] >> i % kPerWord * (8 * kSize));
  }
  __device__ __forceinline__ void set_bits(int i, Bits value) {
    if constexpr (kSize == 8) word[2 * i] = static_cast<uint32_t>(value), word[2 * i + 1] = static_cast<uint32_t>(value >> 32);
    else if constexpr (kSize == 4) word[i] = value;
    else if (i % kPerWord == 0) word[i / kPerWord] = value;
    else word[i / kPerWord] |= static_cast<uint32_t>(value) << i % kPerWord * (8 * kSize);
  }

  // wide: the vector is aligned. count: the number of valid elements.
  __device__ __forceinline__ void load(const void* base, int64_t at, bool wide, int count) {
    const Bits* from = static_cast<const Bits*>(base) + at;
    if (kWhole && wide && count == kCount) return copy<true>(const_cast<Bits*>(from));
#pragma unroll
    for (int i = 0; i < kCount; ++i) set_bits(i, i < count ? from[i] : Bits(0));
  }
  // The same load with any step between elements.
  __device__ __forceinline__ void load_apart(const void* base, int64_t at, int64_t step, bool wide, int count) {
    const Bits* from = static_cast<const Bits*>(base) + at;
    if (kWhole && wide && count == kCount) return copy<true>(const_cast<Bits*>(from));
#pragma unroll
    for (int i = 0; i < kCount; ++i) set_bits(i, i < count ? from[i * step] : Bits(0));
  }
  // Loads a whole aligned vector, or one element that all lanes share; `spread` copies this element to the others after it has
  // arrived.
  __device__ __forceinline__ void load_whole(const void* base, int64_t at, bool wide) {
    static_assert(kAligned, "whole words, or a part of one");
    const Bits* from = static_cast<const Bits*>(base) + at;
    if (wide) copy<true>(const_cast<Bits*>(from));
    else set_bits(0, *from);
  }
  __device__ __forceinline__ void forget_origin() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) opfacade::forget_origin(word[i]);
  }
  __device__ __forceinline__ void spread() {
    const Bits only = bits(0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) set_bits(i, only);
  }
  __device__ __forceinline__ void store(void* base, int64_t at, bool wide, int count) { store_apart(base, at, 1, wide, count); }
  __device__ __forceinline__ void store_apart(void* base, int64_t at, int64_t step, bool wide, int count) {
    Bits* to = static_cast<Bits*>(base) + at;
    if (kWhole && wide && count == kCount) return copy<false>(to);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < count) to[i * step] = bits(i);
  }

  // Loads a vector of any alignment as the aligned chunks that contain it. Chunks outside the `span` elements from `base` are
  // not read: if `touches_outside`, load the vector in another way. Elements past `count` are undefined.
  __device__ __forceinline__ void load_anywhere(const void* base, int64_t at, int64_t span, int count) {
    static_assert(kAligned, "whole words, or a part of one");
    const Touched pieces(base, at, count);
    const char* const from = static_cast<const char*>(base);
    uint32_t found[kWords + kAtOnce];
#pragma unroll
    for (int i = 0; i <= kWords / kAtOnce; ++i) {
      const int64_t first = pieces.first + i * kAccess;
      const bool there = i * kAccess < pieces.bytes && (i > 0 || first >= 0) && first + kAccess <= span * kSize;
      read_piece(found + i * kAtOnce, from + first, there);
    }
    shift_down<kAtOnce, kSize>(found, pieces.shift);
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = found[i];
  }
  __device__ __forceinline__ static bool touches_outside(const void* base, int64_t at, int64_t span, int count) {
    const Touched pieces(base, at, count);
    const int64_t end = pieces.first + (pieces.bytes + kAccess - 1) / kAccess * kAccess;
    return count > 0 && (pieces.first < 0 || end > span * kSize);
  }
  // The same load if all chunks may be read, without a check per chunk.
  __device__ __forceinline__ void load_within(const void* base, int64_t at) {
    static_assert(kAligned, "whole words, or a part of one");
    const uint32_t shift = shift_of(base, at);
    const char* const from = reinterpret_cast<const char*>(static_cast<const Bits*>(base) + at) - shift;
    uint32_t found[kWords + kAtOnce];
#pragma unroll
    for (int i = 0; i <= kWords / kAtOnce; ++i)
      read_piece(found + i * kAtOnce, from + i * kAccess, i < kWords / kAtOnce || shift != 0);
    shift_down<kAtOnce, kSize>(found, shift);
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = found[i];
  }
  // The elements `from` .. `to` - 1 of an unaligned vector; the others are undefined. step: 1, or 0 if all elements are the
  // same.
  __device__ __forceinline__ void load_some(const void* base, int64_t at, int64_t step, int64_t span, int from, int to) {
    const Bits* const first = static_cast<const Bits*>(base) + at;
    if (step == 0) {
      const Bits only = *first;
#pragma unroll
      for (int i = 0; i < kCount; ++i) set_bits(i, only);
    } else if (touches_outside(base, at, span, to)) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) set_bits(i, i >= from && i < to ? first[i] : Bits(0));
    } else {
      load_anywhere(base, at, span, to);
    }
  }
  // The distance, in elements, from the aligned address before the vector at `at` to the vector.
  __device__ __forceinline__ static int late(const void* base, int64_t at) { return static_cast<int>(shift_of(base, at) / kSize); }
  // Stores the elements `from` .. `to` - 1, with whole accesses if the vector is complete and aligned.
  __device__ __forceinline__ void store_some(void* base, int64_t at, int from, int to) {
    Bits* const first = static_cast<Bits*>(base) + at;
    if (kWhole && from == 0 && to == kCount && late(base, at) == 0) return copy<false>(first);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i >= from && i < to) first[i] = bits(i);
  }
  // For `lanes` adjacent lanes of a warp with consecutive vectors: if two lanes share an aligned chunk, the later lane stores
  // the chunk if it is complete; otherwise each lane stores its own elements. left: the number of elements from the start of
  // this vector to the end of the stored range, which may be negative. All lanes of a warp must call this function.
  __device__ __forceinline__ void store_anywhere(void* base, int64_t at, int left, int lane, int lanes) {
    if constexpr (!kWhole) return store(base, at, false, left);
    constexpr int kPieces = kWords / kAtOnce;
    const uint32_t shift = shift_of(base, at);
    uint32_t made[kAtOnce + kWords];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) made[i] = __shfl_up_sync(0xffffffffu, word[kWords - kAtOnce + i], 1);
#pragma unroll
    for (int i = 0; i < kWords; ++i) made[kAtOnce + i] = word[i];
    shift_up<kAtOnce, kSize>(made, shift);
    char* const to = static_cast<char*>(base) + at * kSize - shift;
    const int end = static_cast<int>(shift) + (left < 2 * kCount ? left : 2 * kCount) * kSize;  // including the next vector
    bool whole[kPieces + 1];  // the last one belongs to the next lane
#pragma unroll
    for (int i = 0; i <= kPieces; ++i) {
      whole[i] = end >= (i + 1) * kAccess && (i > 0 || lane != 0 || shift == 0) && (i < kPieces || lane != lanes - 1);
      if (i < kPieces && whole[i]) write_piece(to + i * kAccess, made + kAtOnce * (i + 1));
    }
    store_rest(static_cast<Bits*>(base) + at, shift, left, whole);
  }

 private:
  __device__ __forceinline__ static uint32_t shift_of(const void* base, int64_t at) {
    return (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(base)) + static_cast<uint32_t>(at) * kSize) % kAccess;
  }
  // The aligned chunks that contain `count` elements.
  struct Touched {
    uint32_t shift;  // bytes of the first chunk before the first element
    int bytes;       // from the start of the first chunk to the last element; 0 without elements
    int64_t first;   // bytes from base to the start of the first chunk
    __device__ __forceinline__ Touched(const void* base, int64_t at, int count)
        : shift(shift_of(base, at)), bytes(count > 0 ? static_cast<int>(shift) + count * kSize : 0), first(at * kSize - shift) {}
  };
  __device__ __forceinline__ static void read_piece(uint32_t* found, const char* from, bool there) {
    if constexpr (kAtOnce == 4) {
      uint4 x = make_uint4(0, 0, 0, 0);
      if (there) x = *reinterpret_cast<const uint4*>(from);
      found[0] = x.x, found[1] = x.y, found[2] = x.z, found[3] = x.w;
    } else if constexpr (kAtOnce == 2) {
      uint2 x{0, 0};
      if (there) x = *reinterpret_cast<const uint2*>(from);
      found[0] = x.x, found[1] = x.y;
    } else {
      found[0] = there ? *reinterpret_cast<const uint32_t*>(from) : 0;
    }
  }
  __device__ __forceinline__ static void write_piece(char* to, const uint32_t* made) {
    if constexpr (kAtOnce == 4) store_vector(to, make_uint4(made[0], made[1], made[2], made[3]));
    else if constexpr (kAtOnce == 2) store_vector(to, make_uint2(made[0], made[1]));
    else *reinterpret_cast<uint32_t*>(to) = made[0];
  }
  // Loads or stores the elements of incomplete chunks.
  template <int kPieces>
  __device__ __forceinline__ void store_rest(Bits* to, uint32_t shift, int left, const bool (&whole)[kPieces]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int byte = i * kSize % kAccess, piece = i * kSize / kAccess;
      const bool stored = byte + static_cast<int>(shift) >= kAccess ? whole[piece + 1] : whole[piece];
      if (i < left && !stored) to[i] = bits(i);
    }
  }

  // Loads or stores chunks of up to 16 bytes.
  template <bool kLoad>
  __device__ __forceinline__ void copy(Bits* memory) {
    if constexpr (kWords % 4 == 0) {
      uint4* pieces = reinterpret_cast<uint4*>(memory);
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        if constexpr (kLoad) {
          const uint4 x = pieces[i];
          word[4 * i] = x.x, word[4 * i + 1] = x.y, word[4 * i + 2] = x.z, word[4 * i + 3] = x.w;
        } else {
          store_vector(pieces + i, make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]));
        }
      }
    } else if constexpr (kWords % 2 == 0) {
      uint2* pieces = reinterpret_cast<uint2*>(memory);
#pragma unroll
      for (int i = 0; i < kWords / 2; ++i) {
        if constexpr (kLoad) {
          const uint2 x = pieces[i];
          word[2 * i] = x.x, word[2 * i + 1] = x.y;
        } else {
          store_vector(pieces + i, make_uint2(word[2 * i], word[2 * i + 1]));
        }
      }
    } else {
      uint32_t* pieces = reinterpret_cast<uint32_t*>(memory);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if constexpr (kLoad) word[i] = pieces[i];
        else pieces[i] = word[i];
      }
    }
  }
};

}  // namespace opfacade
