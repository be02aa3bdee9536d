// Vector loads and stores of up to 16 bytes.
#pragma once
#include "kernels/ptx/dtype.cuh"

namespace opfacade {

template <class Bits, int kCount>
struct alignas(sizeof(Bits) * kCount) Run {
  Bits e[kCount];
};

// Elements as loaded, kept as whole words until they are used: unpacking a word immediately would wait for its load and delay
// the next load.
template <class T, int kCount, int kBytes = sizeof(typename Element<T>::Bits) * kCount>
struct Fetched {
  Run<uint32_t, kBytes / 4> words;
  __device__ __forceinline__ float at(int i) const {
    if constexpr (kBytes == 4 * kCount) return __uint_as_float(words.e[i]);
    else return Element<T>::load(static_cast<uint16_t>(words.e[i / 2] >> i % 2 * 16));
  }
};
template <class T, int kCount>
struct Fetched<T, kCount, 2> {
  uint16_t only;
  __device__ __forceinline__ float at(int) const { return Element<T>::load(only); }
};

}  // namespace opfacade
