// A few neighbours of one operand in registers, as they lie in memory. In words, which stay whole until an element is needed.
#pragma once
#include "kernels/common/stored.cuh"
#include "kernels/ptx/forget.cuh"
#include "kernels/ptx/store.cuh"

namespace opfacade {

template <class T, int kCount>
struct Pack {
  using Bits = typename Stored<T>::Bits;
  static constexpr int kSize = sizeof(Bits), kWords = kCount * kSize / 4, kPerWord = kSize < 4 ? 4 / kSize : 1;
  static_assert(kWords * 4 == kCount * kSize, "whole words");
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

  // step: 1, or 0 where all are one. wide: aligned to whole vectors. count: how many there are.
  __device__ __forceinline__ void load(const void* base, int64_t at, int64_t step, bool wide, int count) {
    const Bits* from = static_cast<const Bits*>(base) + at;
    if (wide && count == kCount) return copy<true>(const_cast<Bits*>(from));
    if (step == 0) {
      const Bits only = *from;
#pragma unroll
      for (int i = 0; i < kCount; ++i) set_bits(i, only);
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) set_bits(i, i < count ? from[i] : Bits(0));
  }
  // The same with any step.
  __device__ __forceinline__ void load_apart(const void* base, int64_t at, int64_t step, bool wide, int count) {
    const Bits* from = static_cast<const Bits*>(base) + at;
    if (wide && count == kCount) return copy<true>(const_cast<Bits*>(from));
#pragma unroll
    for (int i = 0; i < kCount; ++i) set_bits(i, i < count ? from[i * step] : Bits(0));
  }
  // A whole vector that is aligned, or the one element that all are: `spread` puts it everywhere once it is there.
  __device__ __forceinline__ void load_whole(const void* base, int64_t at, bool wide) {
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
  __device__ __forceinline__ void store(void* base, int64_t at, bool wide, int count) {
    Bits* to = static_cast<Bits*>(base) + at;
    if (wide && count == kCount) return copy<false>(to);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < count) to[i] = bits(i);
  }

 private:
  // Pieces of up to sixteen bytes.
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
