// Which row a thread works on, and which elements of it are its own.
//
// A row is segments of elements. kLanes neighbouring lanes have a segment, in vectors that follow each other; the kSpan lanes of
// a row, over the CTAs of its cluster, have kSpan / kLanes segments at a time. Without segments kLanes is kSpan. Where kStep is not 1
// it is kLanes: elements of a vector are as far apart, so that neighbouring lanes have neighbours; such a row is not aligned.
#pragma once
#include "kernels/elementwise/pack.cuh"
#include "kernels/elementwise/place.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace opfacade {

// How the elements of a row lie. kWide: vectors are whole and aligned. kDense: neighbours are neighbours in memory. kAny: each
// element has its own place. kNear: kWide or kDense, as a call says: one kernel for both takes half the time to compile. kFlat: in
// shared memory, one row behind the other.
enum class Lie { kWide, kDense, kAny, kNear, kFlat };

template <Lie kLie, class Params>
__device__ __forceinline__ bool is_wide(const Params& p) {
  return kLie == Lie::kWide || (kLie == Lie::kNear && p.aligned != 0);
}

// Offsets and place of an element.
template <class M>
struct Located {
  int64_t at[M::kOperands], place[kMapAxes];
};
// Offsets of row n along the first `axes` axes, and its place along axis 0; along the others too where a program knows places. Else
// a short loop finds them: one that is unrolled has a division of 64 bits for each of eight axes.
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

// Offsets and place of element n along the folded axes; `row` has those of its row.
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

// A program with a kFewer-th of the lanes for a row. A lane has the vectors of kFewer lanes of different warps, and adds and joins
// those of each as that warp does, so that the bits are the same.
template <class M, int kFewer>
struct FewerLanes : M {
  static constexpr int kThreads = M::kThreads / kFewer, kLanes = kThreads, kRows = M::kRows * kFewer;
  static constexpr int kPieces = M::kPieces * kFewer, kFolds = kFewer;
  static_assert(M::kThreads % (32 * kFewer) == 0 && M::kCluster == 1 && M::kHeld && !M::kSegmented, "whole warps");
};

template <class M, Lie kLie>
struct FoldRow : Located<M> {
  using Params = typename M::Params;
  using Located<M>::at, Located<M>::place;
  static constexpr int kSpan = M::kThreads * M::kCluster, kAtOnce = kSpan / M::kLanes;
  static constexpr int kSide = M::kLanes < 32 ? M::kLanes : 32;  // lanes of a warp whose vectors follow each other
  static constexpr int kNone = 1 << 16;
  // CTAs that leave room for those of many kernels behind them, which begin before this one is the first. More would take turns.
  static constexpr int kFewCtas = 16;
  static constexpr bool kShifts = kLie == Lie::kDense && M::kShifts;

  const Params& p;
  int rank, lane, slot;  // rank: of the CTA among those of the row
  int terms;      // of a lane, where kStep is not 1
  int64_t first;  // the place along axis 0
  bool there;

  // Waits for the kernel before, which may have written num_valid, once it knows its place.
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

  // A row of which this is the lane `lane`, in whatever CTA.
  __device__ __forceinline__ FoldRow(const Params& params, int64_t row, int lane)
      : p(params), rank(0), lane(lane), slot(0), there(row < p.rows) {
    find(there ? row : 0);
    if (first >= valid_rows(p)) there = false;
    terms = own_terms();
  }

  // One of the rows that a CTA has in shared memory, the `own`th of those there.
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
  // How many elements of a vector there are; not above kVec, unless kStep is not 1.
  __device__ __forceinline__ int count(int wave, int piece) const {
    if constexpr (M::kStep > 1) return terms - piece * M::kVec;
    if (!has(segment(wave))) return 0;
    if constexpr (M::kWholePieces && kLie == Lie::kWide) {  // elsewhere it takes more registers than there are
      if (piece < M::kPieces - M::kFolds) return M::kVec;  // rows of this class are longer
    }
    const int left = p.elements - element(piece);
    if constexpr (kLie == Lie::kWide) return left > 0 ? M::kVec : 0;
    else return left < 0 ? 0 : left < M::kVec ? left : M::kVec;
  }

  // The one thread that stores what the row has once.
  __device__ __forceinline__ bool leads() const { return there && lane == 0 && (M::kRun == 0 || rank == 0); }
  __device__ __forceinline__ bool has(int segment) const { return there && (!M::kSegmented || segment < p.segments); }

  // Elements from the first of a vector to the end of its segment: it may be negative.
  __device__ __forceinline__ int left(int wave, int piece) const {
    return has(segment(wave)) ? p.elements - element(piece) : -kNone;
  }

  // The vectors of a thread, and what its group has. Vectors that are not aligned have to be mended once all are in flight.
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
  // Whether nothing that kCount vectors touch, of which each is kStep elements behind the one before, lies outside of its tensor.
  template <int kCount, int kApart>
  __device__ __forceinline__ bool inside(int first) const {
    if (!there) return false;
    const int last = first + (kCount - 1) * kApart;
    return !M::is_cut(p, at, 0, first, M::kVec) && !M::is_cut(p, at, 0, last, M::kVec) &&
           !M::is_late_cut(p, at, 0, first, M::kVec) && !M::is_late_cut(p, at, 0, last, M::kVec);
  }
  // Such a vector, from an element on.
  template <bool kLate>
  __device__ __forceinline__ void fetch_inside(typename M::Inputs& in, int element) const {
    M::template fetch<false, true, true>(in, p, at, 0, element, M::kVec);
    if constexpr (kLate) M::template fetch_late<false, true, true>(in, p, at, 0, element, M::kVec);
  }
  // Elements that only outputs need.
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

  // Offsets and place of one element.
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
