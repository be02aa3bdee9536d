// The paths of a map, over a program M that the template prints. Every path computes an element by the same function of the
// same values, so its bits do not depend on the path. The binding picks a path from the strides alone.
//
//   flat     one axis: each operand is dense or one element. Several vectors per thread; all loads precede the first use.
//   rows     the innermost axis as in flat, the others by division: a row begins where a vector begins; a thread has a column.
//   apart    one axis or two, unaligned vectors: a thread's elements are a CTA apart; adjacent threads access neighbours.
//   tile     operands differ in their contiguous axis: transposed ones pass through shared memory (tile.cuh).
//            If rows are unaligned, vectors begin where the first result is aligned, and inputs are shifted to match.
//   strided  any other map, and programs that use the position of an element: one element per thread.
#pragma once
#include "kernels/common/operations.cuh"
#include "kernels/elementwise/map_operands.cuh"
#include "kernels/elementwise/place.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace opfacade {

// The start of a thread's vectors: the offsets of the first vector, and the steps from each vector to the next.
template <int kOperands>
struct MapPlace {
  int64_t at[kOperands], next[kOperands];
};

// The position in a near map, and in any map with one axis, computed with a few 32-bit products. False if some vector of the
// thread is incomplete.
template <class M, bool kFlat, class Params>
__device__ __forceinline__ bool find_near(const Params& p, MapPlace<M::kOperands>& place) {
  uint32_t vector, row = 0;
  if constexpr (kFlat) {
    vector = blockIdx.x * p.each * blockDim.x + threadIdx.x;
  } else {
    const uint32_t item = blockIdx.x * blockDim.x + threadIdx.x, line = quotient(item, p.by_vectors);
    const uint32_t within = line & ((1u << p.band) - 1);
    vector = item - line * p.vectors, row = (line - within) * p.each + within;
  }
#pragma unroll
  for (int k = 0; k < M::kOperands; ++k) {
    place.at[k] = int64_t{vector} * p.column_step[k] + (kFlat ? 0 : int64_t{row} * p.row_step[k]);
    place.next[k] = kFlat ? int64_t{blockDim.x * p.column_step[k]} : int64_t{p.row_step[k]} << p.band;
  }
  const uint32_t more = p.each - 1;
  return vector + (kFlat ? more * blockDim.x : 0) < p.whole_ones && (kFlat || row + (more << p.band) < p.lines);
}

// The vectors of a thread in any map. On the flat path, consecutive vectors are one CTA apart. On the other path, they are a
// column of rows along the second-to-last axis, so that positions along the other axes are computed once.
template <class M, bool kFlat, class Params>
struct MapItem {
  const Params& p;
  uint32_t vector, row = 0, rows = 1;  // row of the first vector, and number of rows
  uint32_t first = 0;                  // position along axis 0, if that is not one of the last two axes
  int64_t width;
  MapPlace<M::kOperands> place;

  __device__ __forceinline__ explicit MapItem(const Params& params) : p(params) {}

  __device__ __forceinline__ void find() {
    width = p.extent[p.rank - 1];
    if constexpr (kFlat) vector = blockIdx.x * p.each * blockDim.x + threadIdx.x;
    else find_row();
  }
  // Excludes rows past num_valid.
  __device__ __forceinline__ void limit(int64_t valid) {
    if constexpr (kFlat) width = min(width, valid);
    else if (p.rank > 2) rows = first >= valid ? 0 : rows;
    else rows = static_cast<uint32_t>(min(int64_t{rows}, valid));
  }

  // The number of elements of vector `u` of the thread, at most kVec; 0 or less if the vector is beyond the end. late: the
  // number of elements of a row's first vector that precede the row.
  __device__ __forceinline__ int64_t count(uint32_t u, int late = 0) const {
    if (!kFlat && row + (u << p.band) >= rows) return 0;
    return min(width + late - int64_t{number(u)} * M::kVec, int64_t{M::kVec});
  }
  // The index of vector `u` in its row.
  __device__ __forceinline__ uint32_t number(uint32_t u) const { return kFlat ? vector + u * blockDim.x : vector; }
  __device__ __forceinline__ bool all_whole() const { return p.whole != 0 && count(p.each - 1) == M::kVec; }

 private:
  __device__ __forceinline__ void find_row() {
    const uint32_t item = blockIdx.x * blockDim.x + threadIdx.x, line = quotient(item, p.by_vectors);
    const uint32_t outer = quotient(line, p.by_rows), own = line - outer * p.rows, within = own & ((1u << p.band) - 1);
    vector = item - line * p.vectors, row = (own - within) * p.each + within;
    const bool beyond = locate_outer<M::kOperands>(p, outer, p.rank - 2, place.at, first) != 0;
    rows = beyond ? 0 : static_cast<uint32_t>(p.extent[p.rank - 2]);
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) {
      const int64_t step = p.stride[k][p.rank - 2];
      place.at[k] += row * step + int64_t{vector} * p.column_step[k];
      place.next[k] = step << p.band;
    }
  }
};

// Computes a few independent elements together, so that their interleaved instructions hide latency.
template <class M, class Params>
__device__ __forceinline__ typename M::Outputs map_values(const typename M::Inputs& in, const Params& p) {
  typename M::Outputs out;
  const int64_t nowhere[kMapAxes] = {};
#pragma unroll
  for (int first = 0; first < M::kVec; first += M::kBeside) {
    typename M::Element elements[M::kBeside];
    typename M::Result results[M::kBeside];
#pragma unroll
    for (int i = 0; i < M::kBeside; ++i) elements[i] = M::element(in, first + i);
    M::at(results, elements, p, nowhere);
    if constexpr (M::kBeside == 1) {
      M::put(out, first, results[0]);
    } else {
#pragma unroll
      for (int i = 0; i < M::kBeside; i += 2) M::put(out, first + i, results[i], results[i + 1]);
    }
  }
  return out;
}

// Processes whole vectors; all loads precede the first use.
template <class M, class Params>
__device__ __forceinline__ void map_together(const Params& p, const MapPlace<M::kOperands>& place) {
  typename M::Inputs in[M::kUnroll];
  int64_t at[M::kOperands];
  const auto move = [&](int u) {
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) at[k] = place.at[k] + u * place.next[k];
  };
  const auto finish = [&](int u) {
    M::spread(in[u], p);
    typename M::Outputs out = map_values<M>(in[u], p);
    move(u);
    M::store_whole(out, p, at);
  };
  move(0);
  M::fetch_whole(in[0], in[0], p, at, false);
  if (p.each > 1) {
#pragma unroll
    for (int u = 1; u < M::kUnroll; ++u) {
      move(u);
      M::fetch_whole(in[u], in[0], p, at, true);
    }
  }
  finish(0);
  if (p.each == 1) return;
#pragma unroll
  for (int u = 1; u < M::kUnroll; ++u) finish(u);
}

// Processes an unaligned or incomplete vector. Inputs are shifted to the position where the first result is aligned.
template <class M, bool kFlat, class Params>
__device__ __forceinline__ void map_one(const Params& p, const MapItem<M, kFlat, Params>& item, uint32_t u) {
  int64_t at[M::kOperands];
#pragma unroll
  for (int k = 0; k < M::kOperands; ++k) at[k] = item.place.at[k] + u * item.place.next[k];
  const int late = p.peels != 0 ? M::late(p, at) : 0, from = item.number(u) == 0 ? late : 0;
  const int to = static_cast<int>(item.count(u, late));
  if (to <= from) return;
#pragma unroll
  for (int k = 0; k < M::kOperands; ++k) at[k] -= late * p.stride[k][p.rank - 1];
  typename M::Inputs in;
  M::fetch(in, p, at, from, to);
  typename M::Outputs out = map_values<M>(in, p);
  M::store(out, p, at, from, to);
}

template <class M, bool kFlat, class Params>
__device__ __forceinline__ void map_vectors(const Params& p) {
  MapItem<M, kFlat, Params> item(p);
  constexpr bool kTogether = M::kUnroll > 1;
  bool whole = false;
  allow_dependents();  // the next kernel has its own prologue
  if (kFlat || (kTogether && p.near != 0)) whole = find_near<M, kFlat>(p, item.place) && kTogether && p.near != 0;
  if (!whole) item.find();
  wait_for_previous();
  if (!whole) {
    item.limit(valid_rows(p));
    whole = item.all_whole();
  }
  if constexpr (kTogether) {
    if (whole) return map_together<M>(p, item.place);
  }
#pragma unroll 1
  for (uint32_t u = 0; u < p.each; ++u) map_one<M, kFlat>(p, item, u);
}

// Processes the elements `first`, `first` + blockDim.x, ...; all loads precede the first use.
template <class M, int kCount, class Params>
__device__ __forceinline__ void map_elements(const Params& p, uint32_t first) {
  constexpr int kBeside = kCount % M::kBeside == 0 ? M::kBeside : 1;
  uint32_t row[kCount], column[kCount];
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const uint32_t element = first + u * blockDim.x;
    row[u] = quotient(element, p.by_vectors), column[u] = element - row[u] * p.vectors;
  }
  const auto find = [&](int u, int64_t (&at)[M::kOperands]) {
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) at[k] = int64_t{row[u]} * p.row_step[k] + int64_t{column[u] * p.column_step[k]};
  };
  int64_t at[M::kOperands];
  const int64_t nowhere[kMapAxes] = {};
  typename M::Element elements[kCount / kBeside][kBeside];
  wait_for_previous();
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    find(u, at);
    elements[u / kBeside][u % kBeside] = M::load_one(p, at);
  }
#pragma unroll
  for (int u = 0; u < kCount; u += kBeside) {
    typename M::Result results[kBeside];
    M::at(results, elements[u / kBeside], p, nowhere);
#pragma unroll
    for (int i = 0; i < kBeside; ++i) {
      find(u + i, at);
      M::store_one(p, at, results[i]);
    }
  }
}

template <class M, class Params>
__device__ __forceinline__ void map_apart(const Params& p) {
  allow_dependents();
  const uint32_t first = blockIdx.x * p.each * blockDim.x + threadIdx.x;
  if constexpr (M::kApart > 1) {
    if (p.each > 1 && first + (M::kApart - 1) * blockDim.x < p.whole_ones) return map_elements<M, M::kApart>(p, first);
  }
#pragma unroll 1
  for (uint32_t u = 0; u < p.each; ++u)
    if (first + u * blockDim.x < p.whole_ones) map_elements<M, 1>(p, first + u * blockDim.x);
}

template <class M, class Params>
__device__ __forceinline__ void map_strided(const Params& p) {
  const int64_t element = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  allow_dependents();
  if (element >= p.total) return;
  int64_t at[M::kOperands], place[kMapAxes];
  locate<M::kOperands>(p, element, p.rank, at, place);
  wait_for_previous();
  if (place[0] >= valid_rows(p)) return;
  const typename M::Element elements[1] = {M::load_one(p, at)};
  typename M::Result results[1];
  M::at(results, elements, p, place);
  M::store_one(p, at, results[0]);
}

// The boundary modes of an input at computed positions: each index is mapped into its axis, or the read gives the fill value.
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
