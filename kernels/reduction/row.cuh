// Determines which row a thread works on, and which elements of the row are its own.
//
// A row consists of segments. kLanes neighbouring lanes share a segment, in consecutive vectors. The kSpan lanes of a row, in
// all CTAs of its cluster, process kSpan / kLanes segments at a time. Without segments kLanes is kSpan. kStep is 1 or kLanes:
// the distance between the elements of a vector. With kLanes neighbouring lanes have neighbouring elements; such rows need no
// alignment.
#pragma once
#include "kernels/elementwise/pack.cuh"
#include "kernels/elementwise/place.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace opfacade {

// How the elements of a row are stored. kWide: vectors are whole and aligned. kDense: neighbouring elements are contiguous.
// kAny: the address of each element is computed separately. kNear: decided at run time, kWide or kDense (one kernel for both
// takes half the time to compile) or, in ragged rows, a fixed step between elements. kFlat: in shared memory, with contiguous
// rows.
enum class Lie { kWide, kDense, kAny, kNear, kFlat };

template <Lie kLie, class Params>
__device__ __forceinline__ bool is_wide(const Params& p) {
  return kLie == Lie::kWide || (kLie == Lie::kNear && p.aligned != 0);
}

// Offsets of an element in the operands, and its coordinates.
template <class M>
struct Located {
  int64_t at[M::kOperands], place[kMapAxes];
};
// Finds the offsets of row n over the first `axes` axes, and its coordinate along axis 0; all coordinates if the program uses
// them (kPlaced). Otherwise the loop is not unrolled: unrolled, it would have a 64-bit division for each of eight axes.
template <class M>
__device__ __forceinline__ void locate_row(Located<M>& found, const typename M::Params& p, int64_t n, int axes) {
  if constexpr (M::kPlaced) {
    locate<M::kOperands>(p, n, axes, found.at, found.place);
  } else {
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) found.at[k] = 0;
    found.place[0] = 0;
#pragma unroll 1
    for (int axis = axes - 1; axis >= 0; --axis) {
      n = split(n, p.extent[axis], p.divider[axis], found.place[0]);
#pragma unroll
      for (int k = 0; k < M::kOperands; ++k) found.at[k] += found.place[0] * p.stride[k][axis];
    }
  }
}

// Offsets and coordinates of element n along the folded axes. row: those of the element's row.
template <class M>
__device__ __forceinline__ Located<M> located_from(const Located<M>& row, const typename M::Params& p, int64_t n) {
  Located<M> found;
#pragma unroll
  for (int k = 0; k < M::kOperands; ++k) found.at[k] = row.at[k];
  if constexpr (M::kPlaced) {
#pragma unroll
    for (int axis = kMapAxes - 1; axis >= 0; --axis) {
      found.place[axis] = row.place[axis];
      if (axis < p.kept || axis >= p.rank) continue;
      n = split(n, p.extent[axis], p.divider[axis], found.place[axis]);
#pragma unroll
      for (int k = 0; k < M::kOperands; ++k) found.at[k] += found.place[axis] * p.stride[k][axis];
    }
  } else {
#pragma unroll 1
    for (int axis = p.rank - 1; axis >= p.kept; --axis) {
      int64_t here;
      n = split(n, p.extent[axis], p.divider[axis], here);
#pragma unroll
      for (int k = 0; k < M::kOperands; ++k) found.at[k] += here * p.stride[k][axis];
    }
  }
  return found;
}

// A stage of a program, by its number.
template <int kIndex>
struct At {
  static constexpr int kStage = kIndex;
};

// A program with kFewer times fewer lanes per row. A lane has the vectors of kFewer lanes of different warps. It adds the
// vectors of each of these lanes separately, and they are joined as in the lanes' own warps, so the bits are the same.
template <class M, int kFewer>
struct FewerLanes : M {
  static constexpr int kThreads = M::kThreads / kFewer, kLanes = kThreads, kRows = M::kRows * kFewer, kSlots = M::kSlots * kFewer;
  static constexpr int kPieces = M::kPieces * kFewer, kFolds = kFewer;
  static_assert(M::kThreads % (32 * kFewer) == 0 && M::kCluster == 1 && M::kHeld && !M::kSegmented, "whole warps");
};

template <class M, Lie kLie>
struct FoldRow : Located<M> {
  using Params = typename M::Params;
  using Located<M>::at, Located<M>::place;
  static constexpr int kSpan = M::kThreads * M::kCluster, kAtOnce = kSpan / M::kLanes;
  static constexpr int kSide = M::kLanes < 32 ? M::kLanes : 32;  // lanes of a warp with consecutive vectors
  static constexpr int kNone = 1 << 16;
  // A grid of at most kFewCtas CTAs lets its dependents start at once: CTAs of many such kernels fit on the GPU together. CTAs
  // of larger grids would have to take turns.
  static constexpr int kFewCtas = 16;
  static constexpr bool kShifts = kLie == Lie::kDense && M::kShifts;

  const Params& p;
  int rank, lane, slot;  // rank: this CTA's among the row's CTAs
  int terms;      // elements of a lane if kStep > 1
  int64_t first;  // coordinate along axis 0
  bool there;

  // Finds its row, then waits for the previous kernel, which may have written num_valid.
  __device__ __forceinline__ explicit FoldRow(const Params& params) : p(params) {
    if (gridDim.x <= kFewCtas) allow_dependents();
    const uint32_t ctas = M::kRun > 0 ? static_cast<uint32_t>(p.ctas) : M::kCluster;
    const int thread = static_cast<int>(threadIdx.x);
    rank = static_cast<int>(blockIdx.x % ctas), slot = M::kRows == 1 ? 0 : thread / M::kThreads;
    lane = (M::kRun > 0 ? 0 : rank * M::kThreads) + (M::kRows == 1 ? thread : thread % M::kThreads);
    const int64_t row = int64_t{blockIdx.x / ctas} * M::kRows + slot;
    there = row < p.rows;
    find(there ? row : 0);
    wait_for_previous();
    if (first >= valid_rows(p)) there = false;
    terms = own_terms();
  }

  // Lane `lane` of a row, whatever the CTA.
  __device__ __forceinline__ FoldRow(const Params& params, int64_t row, int lane)
      : p(params), rank(0), lane(lane), slot(0), there(row < p.rows) {
    find(there ? row : 0);
    if (first >= valid_rows(p)) there = false;
    terms = own_terms();
  }

  // Row number `own` of those that this CTA has in shared memory.
  __device__ __forceinline__ FoldRow(const Params& params, int64_t row, int own, bool there)
      : p(params), rank(0), lane(static_cast<int>(threadIdx.x) % M::kThreads), slot(static_cast<int>(threadIdx.x) / M::kThreads),
        first(row), there(there) {
#pragma unroll
    for (int axis = 0; axis < kMapAxes; ++axis) place[axis] = axis == 0 ? row : 0;
#pragma unroll
    for (int k = 0; k < M::kOperands; ++k) at[k] = M::flat_once(k) ? 0 : M::flat_size(k) != 0 ? int64_t{own} * p.elements : row * p.stride[k][0];
  }

  __device__ __forceinline__ int segment(int wave) const {
    return kAtOnce == 1 ? wave : wave * kAtOnce + lane / M::kLanes;
  }
  __device__ __forceinline__ int element(int piece) const {
    const int own = M::kLanes == kSpan ? lane : lane % M::kLanes;
    return M::kStep == 1 ? (piece * M::kLanes + own) * M::kVec : piece * M::kLanes * M::kVec + own;
  }
  // Number of a vector's elements in the row: 0 to kVec. With kStep > 1 it may also be negative or exceed kVec.
  __device__ __forceinline__ int count(int wave, int piece) const {
    if constexpr (M::kStep > 1) return terms - piece * M::kVec;
    if (!has(segment(wave))) return 0;
    if constexpr (M::kWholePieces && kLie == Lie::kWide) {  // other layouts would take too many registers
      if (piece < M::kPieces - M::kFolds) return M::kVec;  // no row of this class ends earlier
    }
    const int left = p.elements - element(piece);
    if constexpr (kLie == Lie::kWide) return left > 0 ? M::kVec : 0;
    else return left < 0 ? 0 : left < M::kVec ? left : M::kVec;
  }

  // True for the thread that stores the outputs with one value per row.
  __device__ __forceinline__ bool leads() const { return there && lane == 0 && (M::kRun == 0 || rank == 0); }
  __device__ __forceinline__ bool has(int segment) const { return there && (!M::kSegmented || segment < p.segments); }

  // Elements from the first of a vector to the end of its segment; may be negative.
  __device__ __forceinline__ int left(int wave, int piece) const {
    return has(segment(wave)) ? p.elements - element(piece) : -kNone;
  }

  // Loads this thread's vectors, and the values per segment. Vectors that are not aligned may need `mend` once all loads were
  // issued.
  __device__ __forceinline__ void fetch(typename M::Inputs& in, int wave, int piece, int count) const {
    M::template fetch<kLie == Lie::kWide, kShifts, kLie == Lie::kFlat>(in, p, at, segment(wave), element(piece), count);
    if (has(segment(wave))) M::fetch_steps(in, p, at, segment(wave));
  }
  __device__ __forceinline__ bool is_cut(int wave, int piece, int count) const {
    return M::is_cut(p, at, segment(wave), element(piece), count);
  }
  __device__ __forceinline__ void fetch_elements(typename M::Inputs& in, int wave, int piece, int count) const {
    M::template fetch<false>(in, p, at, segment(wave), element(piece), count);
  }
  __device__ __forceinline__ void mend(typename M::Inputs& in, int wave, int piece, int count) const {
    if constexpr (kShifts) {
      if (!is_cut(wave, piece, count)) return;
      fetch_elements(in, wave, piece, count);
    }
  }
  // Whether kCount vectors, which begin kApart elements apart, touch no memory outside their tensors.
  template <int kCount, int kApart>
  __device__ __forceinline__ bool inside(int first) const {
    if (!there) return false;
    const int last = first + (kCount - 1) * kApart;
    return !M::is_cut(p, at, 0, first, M::kVec) && !M::is_cut(p, at, 0, last, M::kVec) &&
           !M::is_late_cut(p, at, 0, first, M::kVec) && !M::is_late_cut(p, at, 0, last, M::kVec);
  }
  // Loads a vector for which `inside` was true. element: its first one.
  template <bool kLate>
  __device__ __forceinline__ void fetch_inside(typename M::Inputs& in, int element) const {
    M::template fetch<false, true, true>(in, p, at, 0, element, M::kVec);
    if constexpr (kLate) M::template fetch_late<false, true, true>(in, p, at, 0, element, M::kVec);
  }
  // Loads the inputs that only outputs need.
  __device__ __forceinline__ void fetch_late(typename M::Inputs& in, int wave, int piece, int count) const {
    M::template fetch_late<kLie == Lie::kWide, kShifts>(in, p, at, segment(wave), element(piece), count);
    if constexpr (kShifts) {
      if (M::is_late_cut(p, at, segment(wave), element(piece), count))
        M::template fetch_late<false>(in, p, at, segment(wave), element(piece), count);
    }
  }
  __device__ __forceinline__ void store(typename M::Outputs& out, int wave, int piece, int count) const {
    if constexpr (kShifts)
      M::store_anywhere(out, p, at, segment(wave), element(piece), left(wave, piece), static_cast<int>(threadIdx.x) % kSide, kSide);
    else
      M::template store<kLie == Lie::kWide>(out, p, at, segment(wave), element(piece), count);
  }

  // Offsets and coordinates of one element.
  __device__ __forceinline__ Located<M> located(int segment, int element) const {
    return located_from<M>(*this, p, int64_t{segment} * p.elements + element);
  }

 private:
  __device__ __forceinline__ int own_terms() const {
    if (M::kStep == 1 || !there || p.elements <= element(0)) return 0;
    return static_cast<int>(static_cast<uint32_t>(p.elements - element(0) + M::kStep - 1) / M::kStep);
  }
  __device__ __forceinline__ void find(int64_t row) {
#pragma unroll
    for (int axis = 0; axis < kMapAxes; ++axis) place[axis] = 0;
    first = row;
    if (p.kept == 1) {  // no division
      place[0] = row;
#pragma unroll
      for (int k = 0; k < M::kOperands; ++k) at[k] = row * p.stride[k][0];
    } else if constexpr (M::kPlaced) {
      locate<M::kOperands>(p, row, p.kept, at, place);
      first = place[0];
    } else {
#pragma unroll
      for (int k = 0; k < M::kOperands; ++k) at[k] = 0;
#pragma unroll 1
      for (int axis = p.kept - 1; axis >= 0; --axis) {
        row = split(row, p.extent[axis], p.divider[axis], first);
#pragma unroll
        for (int k = 0; k < M::kOperands; ++k) at[k] += first * p.stride[k][axis];
      }
    }
  }
};

}  // namespace opfacade
