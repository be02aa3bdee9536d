// A pair of a gate and its up value, which are adjacent in memory, as one element of a map.
#pragma once
#include "kernels/common/stored.cuh"

namespace opfacade {

template <class T>
struct PairOf {};

template <class T>
struct Stored<PairOf<T>> {
  using Half = typename Stored<T>::Bits;
  using Bits = typename UnsignedOf<2 * sizeof(Half)>::Type;
  struct Value {
    float first, second;
  };
  static __device__ __forceinline__ Value load(Bits x) {
    return {Stored<T>::load(static_cast<Half>(x)), Stored<T>::load(static_cast<Half>(x >> 8 * sizeof(Half)))};
  }
};

}  // namespace opfacade
