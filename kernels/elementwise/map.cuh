// The four paths of a map, over a program M that the template prints. All compute an element by the same function of the same values,
// so its bits do not depend on the path. The binding picks one by strides alone.
//
//   flat     one axis: each operand is dense or one element. Vectors, two a thread, all loads before the first is used.
//   rows     the innermost axis as in flat, the others by division: a row begins where a vector does.
//   tile     operands disagree which axis is contiguous: those that are turned pass through shared memory.
//   strided  anything else, and all that knows its place: an element a thread.
#pragma once
#include "kernels/common/operations.cuh"
#include "kernels/elementwise/pack.cuh"
#include "kernels/elementwise/place.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace opfacade {

template <class M, bool kFlat, class Params>
__device__ __forceinline__ void map_vectors(const Params& p) {
  constexpr int kVec = M::kVec, kUnroll = M::kUnroll, kOperands = M::kOperands;
  typename M::Inputs in[kUnroll];
  int64_t at[kUnroll][kOperands];
  int count[kUnroll];
  const int inner = p.rank - 1;
  const int64_t width = p.extent[inner], items = (p.total / width) * p.vectors, valid = valid_rows(p);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t item = (int64_t{blockIdx.x} * kUnroll + u) * kMapThreads + threadIdx.x;
    int64_t place[kMapAxes] = {}, column = item, row = 0;
    count[u] = 0;
    if (item >= items) continue;
    if constexpr (kFlat) {
#pragma unroll
      for (int k = 0; k < kOperands; ++k) at[u][k] = 0;
    } else {
      row = split(item, p.vectors, p.by_vectors, column);
      locate<kOperands>(p, row, inner, at[u], place);
      if (place[0] >= valid) continue;
    }
    column *= kVec;
    count[u] = static_cast<int>(min(width - column, int64_t{kVec}));
#pragma unroll
    for (int k = 0; k < kOperands; ++k) at[u][k] += column * p.stride[k][inner];
    M::fetch(in[u], p, at[u], inner, count[u]);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (count[u] == 0) continue;
    typename M::Outputs out;
    const int64_t nowhere[kMapAxes] = {};
#pragma unroll
    for (int i = 0; i < kVec; ++i) M::put(out, i, M::at(M::element(in[u], i), p, nowhere));
    M::store(out, p, at[u], count[u]);
  }
}

template <class M, class Params>
__device__ __forceinline__ void map_strided(const Params& p) {
  const int64_t element = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (element >= p.total) return;
  int64_t at[M::kOperands], place[kMapAxes];
  locate<M::kOperands>(p, element, p.rank, at, place);
  if (place[0] >= valid_rows(p)) return;
  M::store_one(p, at, M::at(M::load_one(p, at), p, place));
}

// A tile is kTile places of the last axis by kTile of the one before; tiles of one batch follow each other.
template <class M, class Params>
__device__ __forceinline__ void map_tile(const Params& p) {
  constexpr int kTile = M::kTile;
  const int64_t across = (p.extent[p.rank - 1] + kTile - 1) / kTile, down = (p.extent[p.rank - 2] + kTile - 1) / kTile;
  const int64_t batch = blockIdx.x / (across * down), tile = blockIdx.x % (across * down);
  const int64_t row = tile / across * kTile, column = tile % across * kTile;
  const int rows = static_cast<int>(min(p.extent[p.rank - 2] - row, int64_t{kTile}));
  const int columns = static_cast<int>(min(p.extent[p.rank - 1] - column, int64_t{kTile}));
  int64_t at[M::kOperands], place[kMapAxes];
  locate<M::kOperands>(p, batch, p.rank - 2, at, place);
  const int64_t nowhere[kMapAxes] = {};
#pragma unroll
  for (int k = 0; k < M::kOperands; ++k) at[k] += row * p.stride[k][p.rank - 2] + column * p.stride[k][p.rank - 1];
  unsigned char* const shared = dynamic_shared();
  for (int i = threadIdx.x; i < kTile * kTile; i += kMapThreads) {
    const int r = i % kTile, c = i / kTile;
    if (r < rows && c < columns) M::turn(shared, p, at, r, c);
  }
  __syncthreads();
#pragma unroll 1  // unrolled, ptxas 13.0 spills
  for (int i = threadIdx.x; i < kTile * kTile; i += kMapThreads) {
    const int r = i / kTile, c = i % kTile;
    if (r >= rows || c >= columns) continue;
    int64_t here[M::kOperands];
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) here[k] = at[k] + r * p.stride[k][p.rank - 2] + c * p.stride[k][p.rank - 1];
    M::store_one(p, here, M::at(M::load_turned(shared, p, here, r, c), p, nowhere));
  }
}

// An input at computed places: each is brought into its axis, or the read is outside.
enum class Outside { kClamp, kWrap, kReflect, kFill };

template <Outside kOutside>
__device__ __forceinline__ int64_t brought_inside(int64_t place, int64_t size, bool& inside) {
  if (place >= 0 && place < size) return place;
  inside = false;
  if constexpr (kOutside == Outside::kWrap) return ops::mod_(place, size);
  if constexpr (kOutside == Outside::kReflect) {
    const int64_t period = size > 1 ? 2 * size - 2 : 1, rest = ops::mod_(place, period);
    return rest < size ? rest : period - rest;
  }
  return place < 0 ? 0 : size - 1;
}

template <class T, Outside kOutside, int kOperand, class Params, class... Places>
__device__ __forceinline__ typename Stored<T>::Value read_at(const Params& p, typename Stored<T>::Value fill, Places... places) {
  const int64_t given[] = {places...};
  bool inside = true;
  int64_t at = 0;
#pragma unroll
  for (int axis = 0; axis < static_cast<int>(sizeof...(Places)); ++axis) {
    const int64_t size = p.own[kOperand][axis];
    if (size == 0) return fill;
    at += brought_inside<kOutside>(given[axis], size, inside) * p.stride[kOperand][axis];
  }
  if (kOutside == Outside::kFill && !inside) return fill;
  return Stored<T>::load(static_cast<const typename Stored<T>::Bits*>(p.operand[kOperand])[at]);
}

}  // namespace opfacade
