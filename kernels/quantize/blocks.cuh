// Quantises or dequantises a matrix by blocks. A CTA keeps a block in registers, so that it is read once. Blocks at the right
// and lower edges may be smaller; a count on the device may end the rows earlier. A template prints C: From and To, the types
// in memory, Scale, the block, and the value of an element.
#pragma once
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/quantize/blocks_params.h"
#include "kernels/reduction/join.cuh"
#include "kernels/elementwise/pairs.cuh"

namespace opfacade {

template <class C>
struct Blocks {
  static constexpr int kVec = 8, kThreads = 256, kAcross = (C::kColumns + kVec - 1) / kVec;
  static constexpr int kPieces = (C::kRows * kAcross + kThreads - 1) / kThreads;
  using Most = Extreme<float, true>;

  const BlocksParams& p;
  int64_t row, column;  // first element of the block
  int64_t rows;         // valid rows and columns of the matrix
  Pack<typename C::From, kVec> held[kPieces];

  __device__ __forceinline__ explicit Blocks(const BlocksParams& params) : p(params) {
    row = int64_t{blockIdx.x / p.across} * C::kRows, column = int64_t{blockIdx.x % p.across} * C::kColumns;
    wait_for_previous();
    rows = valid_rows();
  }

  __device__ __forceinline__ void quantise() {
    if (C::kCounted && row >= rows) return;
    fetch();
    Most::State most = Most::none();
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
      for (int i = 0; i < kVec; ++i) Most::add(most, ops::abs_(element(piece, i)), 0);  // an element outside the matrix is 0
    most = join_warps<Most, kThreads / 32, 1>(join_lanes<Most, 32>(most), static_cast<int>(threadIdx.x) / 32, 0);
    const float scale = C::scale_of(ops::maximum_(most.value, p.least));
    if (threadIdx.x == 0) *scale_place() = Stored<typename C::Scale>::store(scale);
    store(scale);
  }
  __device__ __forceinline__ void dequantise() {
    if (C::kCounted && row >= rows) return;
    fetch();
    store(Stored<typename C::Scale>::load(*scale_place()));
  }

 private:
  // No rows if the count is wrong.
  __device__ __forceinline__ int64_t valid_rows() const {
    if constexpr (!C::kCounted) return p.rows;
    const int64_t counted = *p.num_valid;
    return counted <= p.rows ? counted : 0;
  }
  __device__ __forceinline__ typename Stored<typename C::From>::Value element(int piece, int i) const {
    return Stored<typename C::From>::load(held[piece].bits(i));
  }
  __device__ __forceinline__ typename Stored<typename C::Scale>::Bits* scale_place() const {
    const int64_t at = blockIdx.x / p.across * p.scale_stride[0] + blockIdx.x % p.across * p.scale_stride[1];
    return static_cast<typename Stored<typename C::Scale>::Bits*>(p.scale) + at;
  }

  struct Vector {
    int64_t row, column;
    int count;  // elements inside the block and the matrix
  };
  __device__ __forceinline__ Vector vector(int piece) const {
    const int place = piece * kThreads + static_cast<int>(threadIdx.x), down = place / kAcross, right = place % kAcross * kVec;
    const int64_t left = min(int64_t{C::kColumns}, p.columns - column) - right;
    const bool there = down < C::kRows && row + down < rows && left > 0;
    return {row + down, column + right, !there ? 0 : left < kVec ? static_cast<int>(left) : kVec};
  }

  __device__ __forceinline__ void fetch() {
    const auto* from = static_cast<const typename Stored<typename C::From>::Bits*>(p.from);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const Vector at = vector(piece);
      const int64_t first = at.row * p.from_stride[0] + at.column * p.from_stride[1];
      if (p.wide && at.count == kVec) {
        held[piece].load(p.from, first, true, kVec);
      } else {
#pragma unroll
        for (int i = 0; i < kVec; ++i) held[piece].set_bits(i, i < at.count ? from[first + i * p.from_stride[1]] : 0);
      }
    }
    allow_dependents();
  }

  __device__ __forceinline__ void store(float scale) {
    const auto factor = C::factor_of(scale);
    auto* to = static_cast<typename Stored<typename C::To>::Bits*>(p.to);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const Vector at = vector(piece);
      const int64_t first = at.row * p.to_stride[0] + at.column * p.to_stride[1];
      Pack<typename C::To, kVec> made;
#pragma unroll
      for (int i = 0; i < kVec; i += 2)
        PairsOf<typename C::To>::set(made, i, C::value(element(piece, i), factor), C::value(element(piece, i + 1), factor));
      if (p.wide && at.count == kVec) {
        made.store(p.to, first, true, kVec);
      } else {
#pragma unroll
        for (int i = 0; i < kVec; ++i)
          if (i < at.count) to[first + i * p.to_stride[1]] = made.bits(i);
      }
    }
  }
};

}  // namespace opfacade
