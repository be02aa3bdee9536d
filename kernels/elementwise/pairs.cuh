// Stores two adjacent elements together, because one conversion instruction packs both. The bits are those of single stores.
#pragma once
#include "kernels/elementwise/pack.cuh"

namespace opfacade {

template <class T>
struct PairsOf {
  template <class P, class Value>
  static __device__ __forceinline__ void set(P& pack, int i, Value first, Value second) {
    pack.set_bits(i, Stored<T>::store(first));
    pack.set_bits(i + 1, Stored<T>::store(second));
  }
};
template <class T>
struct HalfPairs {
  template <class P>
  static __device__ __forceinline__ void set(P& pack, int i, float first, float second) {
    pack.word[i / 2] = T::pack(first, second);
  }
};
template <class T>
struct BytePairs {
  template <class P>
  static __device__ __forceinline__ void set(P& pack, int i, float first, float second) {
    const uint32_t pair = T::narrow(first, second);
    if (i % 4 == 0) pack.word[i / 4] = pair;
    else pack.word[i / 4] |= pair << 16;
  }
};
template <> struct PairsOf<F16> : HalfPairs<F16> {};
template <> struct PairsOf<BF16> : HalfPairs<BF16> {};
template <> struct PairsOf<E4M3> : BytePairs<E4M3> {};
template <> struct PairsOf<E5M2> : BytePairs<E5M2> {};

}  // namespace opfacade
