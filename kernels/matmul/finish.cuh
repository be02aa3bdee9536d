// The end of a tile: the program of the plan over the sums, element by element, and the stores.
#pragma once
#include "kernels/common/operations.cuh"
#include "kernels/matmul/tiles.cuh"

namespace opfacade {

// Two neighbouring columns; the second may be outside.
template <class T>
struct MatmulPair {
  using Bits = typename Stored<T>::Bits;
  using Both = typename UnsignedOf<2 * sizeof(Bits)>::Type;

  static __device__ __forceinline__ void load(float (&value)[2], const void* from, int64_t at, int left, bool aligned) {
    const Bits* bits = static_cast<const Bits*>(from) + at;
    if (aligned && left > 1) {
      const Both both = *reinterpret_cast<const Both*>(bits);
      value[0] = Stored<T>::load(static_cast<Bits>(both)), value[1] = Stored<T>::load(static_cast<Bits>(both >> 8 * sizeof(Bits)));
    } else {
      value[0] = left > 0 ? Stored<T>::load(bits[0]) : 0.f, value[1] = left > 1 ? Stored<T>::load(bits[1]) : 0.f;
    }
  }
  static __device__ __forceinline__ void store(void* to, int64_t at, const float (&value)[2], int left, bool aligned) {
    Bits* bits = static_cast<Bits*>(to) + at;
    const Bits first = Stored<T>::store(value[0]), second = Stored<T>::store(value[1]);
    if (aligned && left > 1) {
      *reinterpret_cast<Both*>(bits) = first | static_cast<Both>(second) << 8 * sizeof(Bits);
    } else {
      if (left > 0) bits[0] = first;
      if (left > 1) bits[1] = second;
    }
  }
};

// The sums of one thread (see wgmma.cuh) from a row and a column on, eight columns apart.
template <class C>
__device__ __forceinline__ void finish_block(const MatmulParams& p, int batch, int row, int rows, int column, const float* sums) {
  const int left = p.columns - column;
  if (left <= 0) return;
  typename C::Program::Bias bias;
  C::Program::load_bias(bias, p, column, left);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float two[2] = {sums[2 * half], sums[2 * half + 1]};
    if (row + 8 * half < rows) C::Program::finish(p, bias, batch, row + 8 * half, column, left, two);
  }
}

// Some blocks a round, after which the sums move down: the code of a program is there for one round alone, which saves compile
// time.
template <class C>
__device__ __forceinline__ void finish_tile(const MatmulParams& p, const Tile& tile, int rows, int group, float (&sums)[C::kColumns / 2]) {
  constexpr int kRound = C::kBlocks < C::kColumns / 8 ? C::kBlocks : C::kColumns / 8;
  const int thread = threadIdx.x % kWarpgroup, row = tile.row + group * 64 + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll 1
  for (int first = 0; first < C::kColumns; first += 8 * kRound) {
#pragma unroll
    for (int block = 0; block < kRound; ++block)
      finish_block<C>(p, tile.batch, row, rows, tile.column + first + 8 * block + thread % 4 * 2, sums + 4 * block);
#pragma unroll
    for (int i = 0; i + 4 * kRound < C::kColumns / 2; ++i) sums[i] = sums[i + 4 * kRound];
  }
}

}  // namespace opfacade
