// The four paths of a map, over a program M that the template prints. All compute an element by the same function of the same values,
// so its bits do not depend on the path. The binding picks one by strides alone.
//
//   flat     one axis: each operand is dense or one element. Several vectors a thread, all loads before the first is used.
//   rows     the innermost axis as in flat, the others by division: a row begins where a vector does, and a thread has a column.
//   tile     operands disagree which axis is contiguous: those that are transposed pass through shared memory (tile.cuh).
//   strided  anything else, and all that knows its place: an element a thread.
#pragma once
#include "kernels/common/operations.cuh"
#include "kernels/elementwise/pairs.cuh"
#include "kernels/elementwise/place.cuh"

namespace opfacade {

// The vectors of a thread. On the flat path they are kMapThreads apart; on the other they lie in one column, rows of the last axis
// but one, so that places along the others are found once.
template <class M, bool kFlat, class Params>
struct MapItem {
  const Params& p;
  uint32_t vector, row = 0, rows = 1;  // of the first, and the rows that there are
  int64_t width, at[M::kOperands];

  __device__ __forceinline__ explicit MapItem(const Params& params) : p(params) {
    const int64_t valid = valid_rows(p);
    width = p.extent[p.rank - 1];
    if constexpr (kFlat) {
      vector = blockIdx.x * p.each * kMapThreads + threadIdx.x, width = min(width, valid);
#pragma unroll
      for (int k = 0; k < M::kOperands; ++k) at[k] = 0;
    } else {
      find_row(valid);
    }
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) at[k] += int64_t{vector * static_cast<uint32_t>(p.stride[k][p.rank - 1])} * M::kVec;
  }

  // Elements of vector `u` of the thread that there are, not above kVec; none or less where it is beyond the end.
  __device__ __forceinline__ int64_t count(uint32_t u) const {
    if (!kFlat && row + (u << p.band) >= rows) return 0;
    return min(width - int64_t{kFlat ? vector + u * kMapThreads : vector} * M::kVec, int64_t{M::kVec});
  }
  __device__ __forceinline__ void offsets(uint32_t u, int64_t (&found)[M::kOperands]) const {
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k)
      found[k] = at[k] + u * (kFlat ? kMapThreads * M::kVec * p.stride[k][p.rank - 1] : p.stride[k][p.rank - 2] << p.band);
  }

 private:
  __device__ __forceinline__ void find_row(int64_t valid) {
    const uint32_t item = blockIdx.x * kMapThreads + threadIdx.x, line = quotient(item, p.by_vectors);
    const uint32_t outer = quotient(line, p.by_rows), own = line - outer * p.rows, within = own & ((1u << p.band) - 1);
    vector = item - line * p.vectors, row = (own - within) * p.each + within;
    uint32_t first;
    const bool beyond = locate_outer<M::kOperands>(p, outer, p.rank - 2, at, first) != 0;
    const int64_t lines = p.extent[p.rank - 2];
    rows = static_cast<uint32_t>(beyond || (p.rank > 2 && first >= valid) ? 0 : p.rank > 2 ? lines : min(lines, valid));
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) at[k] += row * p.stride[k][p.rank - 2];
  }
};

template <class M, class Params>
__device__ __forceinline__ typename M::Outputs map_values(const typename M::Inputs& in, const Params& p) {
  typename M::Outputs out;
  const int64_t nowhere[kMapAxes] = {};
  if constexpr (M::kVec == 1) {
    M::put(out, 0, M::at(M::element(in, 0), p, nowhere));
  } else {
#pragma unroll
    for (int i = 0; i < M::kVec; i += 2) {
      const auto one = M::at(M::element(in, i), p, nowhere);
      M::put(out, i, one, M::at(M::element(in, i + 1), p, nowhere));
    }
  }
  return out;
}

// All vectors of a thread: every load before the first use.
template <class M, class Item, class Params>
__device__ __forceinline__ void map_together(const Params& p, const Item& item) {
  typename M::Inputs in[M::kUnroll];
  int64_t at[M::kOperands];
#pragma unroll
  for (int u = 0; u < M::kUnroll; ++u) {
    item.offsets(u, at);
    M::fetch_whole(in[u], in[0], p, at, u > 0);
  }
#pragma unroll
  for (int u = 0; u < M::kUnroll; ++u) {
    M::spread(in[u], p);
    typename M::Outputs out = map_values<M>(in[u], p);
    item.offsets(u, at);
    M::store_whole(out, p, at);
  }
}

template <class M, bool kFlat, class Params>
__device__ __forceinline__ void map_vectors(const Params& p) {
  const MapItem<M, kFlat, Params> item(p);
  if constexpr (M::kUnroll > 1) {
    if (p.whole != 0 && p.each == M::kUnroll && item.count(M::kUnroll - 1) == M::kVec) return map_together<M>(p, item);
  }
#pragma unroll 1
  for (uint32_t u = 0; u < p.each; ++u) {
    const int count = static_cast<int>(item.count(u));
    if (count <= 0) return;
    int64_t at[M::kOperands];
    item.offsets(u, at);
    typename M::Inputs in;
    M::fetch(in, p, at, p.rank - 1, count);
    typename M::Outputs out = map_values<M>(in, p);
    M::store(out, p, at, count);
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
