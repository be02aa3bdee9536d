// A 16-byte chunk of a row, loaded or stored in one access if it is complete and aligned, otherwise element by element.
#pragma once
#include "kernels/common/run.cuh"

namespace opfacade {

template <class T>
struct RowPiece {
  using Bits = typename Element<T>::Bits;
  static constexpr int kCount = 16 / sizeof(Bits);
  Run<Bits, kCount> held;

  static __device__ __forceinline__ bool whole(const void* at, int64_t left) {
    return left >= kCount && reinterpret_cast<uintptr_t>(at) % 16 == 0;
  }
  // left: the number of elements of the row from `at` on; elements past the row are 0.
  __device__ __forceinline__ void load(const Bits* at, int64_t left) {
    if (whole(at, left)) {
      held = *reinterpret_cast<const Run<Bits, kCount>*>(at);
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) held.e[i] = i < left ? at[i] : Bits{};
  }
  __device__ __forceinline__ void store(Bits* at, int64_t left) const {
    if (whole(at, left)) {
      *reinterpret_cast<Run<Bits, kCount>*>(at) = held;
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < left) at[i] = held.e[i];
  }
  __device__ __forceinline__ float at(int i) const { return Element<T>::load(held.e[i]); }
  __device__ __forceinline__ void set(int i, float value) { held.e[i] = Element<T>::store(value); }
};

}  // namespace opfacade
