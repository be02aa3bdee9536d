// Sums a tile with rows of x on N of wgmma (swapped.cuh), using the consumers of tiles that have rows of x on M.
#pragma once
#include "kernels/matmul/stage_reader.cuh"

namespace opfacade {

template <class C>
struct SwappedReader : StageReader<C> {
  static constexpr bool kMAcross = C::kWeightAcross, kNAcross = false;

  __device__ __forceinline__ Descriptors on_m(int panel) const {
    return steps_of<C::kWeightAcross>(this->smem.weight(this->ring.stage) + (panel * C::kColumns + this->group * 64) * 128);
  }
  __device__ __forceinline__ Descriptors on_n(int panel) const {
    return steps_of<false>(this->smem.x(this->ring.stage) + panel * C::kRows * 128);
  }
};

template <int kValue>
struct Width {
  static constexpr int value = kValue;
};

// Calls make(Width<N>) with the narrowest of four widths that covers the rows of a tile.
template <class C, class Make>
__device__ __forceinline__ void by_width(const Tile& tile, const Make& make) {
  const int units = units_of<C>(tile);
  if (units > 4) make(Width<C::kRows>{});
  else if (units > 2) make(Width<C::kRows / 2>{});
  else if (units == 2) make(Width<C::kRows / 4>{});
  else make(Width<kRowsUnit<C>>{});
}

// Consumer<kWidth>: consumer of sums of kWidth rows.
template <class C, template <int> class Consumer>
struct SwappedConsumer : StageReader<C> {
  using Sums = float[C::kRows / 2];

  template <class All>
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams& p, const All& tiles, int index) {
    by_width<C>(tiles.at(index), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      Consumer<kWidth> consumer{{this->smem, this->group, this->shares, this->ring}};
      consumer.sum(*reinterpret_cast<float(*)[kWidth / 2]>(sums), p, tiles, index);
      this->ring = consumer.ring;
    });
  }
};

}  // namespace opfacade
