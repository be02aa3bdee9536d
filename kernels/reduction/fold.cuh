// A fold over a program M, which the template prints. Each stage reduces one value per element; outputs are computed from the
// elements and the results of the stages. A row that fits is kept in registers and read once; a longer one is read again by
// each stage. The elements of each lane, and the order in which states are joined, follow from the length of a row and from
// dtypes. So the bits of a row depend on neither other rows nor strides.
//
// Stages along whole rows come first. Stages along segments are computed together with the outputs, one wave of segments at a
// time.
#pragma once
#include "kernels/elementwise/pairs.cuh"
#include "kernels/reduction/fold_stages.cuh"

namespace opfacade {

template <class M, Lie kLie>
struct Fold : FoldStages<M, kLie> {
  using Stages = FoldStages<M, kLie>;
  using typename Stages::Params, typename Stages::Row;
  using Stages::Stages;
  using Stages::kHeld, Stages::kSlots, Stages::kAhead, Stages::kFar, Stages::kAtOnce;
  using Stages::p, Stages::row, Stages::held, Stages::constants, Stages::results;
  using Stages::mend_held, Stages::fetch_late, Stages::first_late, Stages::inputs, Stages::each, Stages::each_vector;
  using Stages::waves, Stages::pieces, Stages::first_piece, Stages::end_piece, Stages::row_stages, Stages::segment_stages;

  // Writes the outputs of this lane's vectors in a part of the row.
  __device__ __forceinline__ void store_part(int part) {
    if constexpr (M::kFullOutputs) {
      const auto uniform = M::uniform(At<M::kStages>{}, constants, results, p);
      store_backwards(uniform, 0, part * M::kRun, min((part + 1) * M::kRun, pieces()));
    }
  }

  __device__ __forceinline__ void run() {
    if constexpr (M::kWholePieces && M::kRows == 1) {
      if (!row.there) return;  // then no thread of the CTA or cluster has a row
    }
    if (row.there) constants = M::constants(p, row.at);
    if constexpr (kHeld) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int wave = slot / M::kPieces, piece = slot % M::kPieces;
        row.fetch(held[slot], wave, piece, row.count(wave, piece));
      }
      if constexpr (Row::kShifts) mend_held();
    }
    allow_dependents();
    first_late(0);  // in flight while the stages are computed
    row_stages(At<0>{});
    if (row.leads()) M::store_row(p, row.at, constants, results, row.place);
    each(M::kSegmented ? waves() : 1, [&](int wave) {
      segment_stages(wave, At<M::kRowStages>{});
      store(wave);
    });
    if constexpr (M::kRowStages > 0) leave();
  }

 private:
  // Waits until no other CTA reads this CTA's states.
  __device__ __forceinline__ void leave() const {
    if constexpr (M::kCluster > 1) cluster_arrive(), cluster_wait();
    else if (M::kRun > 0 && M::kClusters && p.ctas > 1) cluster_arrive(), cluster_wait();
  }
  __device__ __forceinline__ void store(int wave) {
    const int segment = row.segment(wave);
    if constexpr (M::kSegmentOutputs) {
      if (row.has(segment) && row.element(0) == 0) store_segment(wave, segment);
    }
    if constexpr (M::kFullOutputs) {
      if (wave > 0) first_late(wave);
      const auto uniform = M::uniform(At<M::kStages>{}, constants, results, p);
      if constexpr (kAhead > 1) {
        store_backwards(uniform, wave, first_piece(), end_piece());
      } else {
        each_vector(wave, [&](int piece, int count) {
          if constexpr (kHeld) fetch_late(wave, piece + M::kLateAhead);  // in flight while this vector is computed
          store_vector(uniform, wave, piece, count);
        });
      }
    }
  }
  // From the end to the beginning: the last stage read the end last, so some of it is still in L2.
  template <class U>
  __device__ __forceinline__ void store_backwards(const U& uniform, int wave, int first, int end) {
    if constexpr (Row::kShifts) return store_aligned(uniform, first, end);
    const int whole = min(end, p.elements / (M::kLanes * M::kVec));
    const int together = first + max(whole - first, 0) / kAhead * kAhead;
#pragma unroll 1
    for (int piece = end - 1; piece >= together; --piece) store_vector(uniform, wave, piece, row.count(wave, piece));
    int piece = together;
#pragma unroll 1
    for (; kFar > kAhead && piece - kFar >= first; piece -= kFar) store_batch<kFar>(uniform, wave, piece - kFar);
#pragma unroll 1
    for (; piece > first; piece -= kAhead) store_batch<kAhead>(uniform, wave, piece - kAhead);
  }
  template <int kCount, class U>
  __device__ __forceinline__ void store_batch(const U& uniform, int wave, int piece) {
    typename M::Inputs in[kCount];
    const int count = row.there ? M::kVec : 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      row.fetch(in[i], wave, piece + i, count);
      row.fetch_late(in[i], wave, piece + i, count);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (count != 0) put_vector(uniform, in[i], wave, piece + i, count);
    }
  }
  // As store_backwards, with vectors that begin at aligned addresses of the first output. So a lane may have other elements
  // than in the stages; an output does not depend on the lane that computes it.
  template <class U>
  __device__ __forceinline__ void store_aligned(const U& uniform, int first, int end) {
    const int late = M::late(p, row.at), own = row.element(0) - late;
    if (end == pieces()) end = (p.elements + late + kAtOnce - 1) / kAtOnce;
#pragma unroll 1
    while (end > first) {
      if (kFar > kAhead && store_inside<kFar>(uniform, own, first, end)) {
        end -= kFar;
      } else if (store_inside<kAhead>(uniform, own, first, end)) {
        end -= kAhead;
      } else {
        store_rest(uniform, own + --end * kAtOnce);
      }
    }
  }
  // Stores the last kCount vectors per lane before `end`. Returns false, without a store, if fewer are left, or if one is not
  // whole or touches memory outside its tensor.
  template <int kCount, class U>
  __device__ __forceinline__ bool store_inside(const U& uniform, int own, int first, int end) {
    const int element = own + (end - kCount) * kAtOnce;
    if (end - kCount < first || element < 0 || element + (kCount - 1) * kAtOnce + M::kVec > p.elements) return false;
    if (!row.template inside<kCount, kAtOnce>(element)) return false;
    typename M::Inputs in[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) row.template fetch_inside<true>(in[i], element + i * kAtOnce);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      typename M::Outputs out = made(uniform, in[i]);
      M::store_some(out, p, row.at, element + i * kAtOnce, 0, M::kVec);
    }
    return true;
  }
  // Stores those elements of the vector at `element` that are inside the row.
  template <class U>
  __device__ __forceinline__ void store_rest(const U& uniform, int element) {
    const int from = max(0, -element), to = min(p.elements - element, M::kVec);
    if (!row.there || to <= from) return;
    typename M::Inputs in{};
    M::fetch_some(in, p, row.at, element, from, to);
    typename M::Outputs out = made(uniform, in);
    M::store_some(out, p, row.at, element, from, to);
  }
  __device__ __forceinline__ void store_segment(int wave, int segment) {
    if constexpr (kLie == Lie::kAny) {
      const auto here = row.located(segment, 0);
      M::store_segment(p, here.at, 0, M::load_one(p, here.at), constants, results, here.place);
    } else {
      M::store_segment(p, row.at, segment, M::element(inputs(wave, 0, 0), 0), constants, results, row.place);
    }
  }
  template <class U>
  __device__ __forceinline__ void store_vector(const U& uniform, int wave, int piece, int count) {
    if (!Row::kShifts && count <= 0) return;  // with shifts the lanes of a warp store together
    if constexpr (kLie == Lie::kAny) {
#pragma unroll 1
      for (int i = 0; i < min(count, M::kVec); ++i) {
        const auto here = row.located(row.segment(wave), row.element(piece) + i * M::kStep);
        M::store_one(p, here.at, M::result(M::load_one(p, here.at), uniform, constants, results, p, here.place));
      }
    } else {
      typename M::Inputs in = inputs(wave, piece, count);
      if constexpr (!kHeld) row.fetch_late(in, wave, piece, count);
      put_vector(uniform, in, wave, piece, count);
    }
  }
  template <class U>
  __device__ __forceinline__ void put_vector(const U& uniform, const typename M::Inputs& in, int wave, int piece, int count) {
    typename M::Outputs out = made(uniform, in);
    row.store(out, wave, piece, count);
  }
  template <class U>
  __device__ __forceinline__ typename M::Outputs made(const U& uniform, const typename M::Inputs& in) {
    typename M::Outputs out;
#pragma unroll
    for (int i = 0; i < M::kVec; i += 2) {
      const auto one = M::result(M::element(in, i), uniform, constants, results, p, row.place);
      M::put(out, i, one, M::result(M::element(in, i + 1), uniform, constants, results, p, row.place));
    }
    return out;
  }
};

}  // namespace opfacade
