// A fold over a program M whose outputs share one scale, in three launches. The first computes the largest |result| of each
// row; the second joins these and writes the scale; the third computes the results again and divides them by the scale. The
// first and the third launch have the same code and lanes, so the largest |result| has the bits of a value that is divided.
// Maxima are in the workspace, so neither atomics nor initialisation is needed.
#pragma once
#include "kernels/reduction/fold.cuh"

namespace opfacade {

// First launch: all stages, of which the last computes the largest |result|; no outputs with a value per element.
template <class M>
struct MostPass : M {
  static constexpr bool kFullOutputs = false;
};

// Third launch: all stages except the last; only outputs with a value per element.
template <class M>
struct ResultPass : M {
  static constexpr int kStages = M::kStages - 1, kRowStages = M::kRowStages - 1;
  using M::uniform;

  static __device__ __forceinline__ auto uniform(At<kStages>, const typename M::Constants& c, const typename M::Results& r,
                                                 const typename M::Params& p) {
    return M::uniform(At<M::kStages>{}, c, r, p);
  }
  static __device__ __forceinline__ void store_row(const typename M::Params&, const int64_t (&)[M::kOperands],
                                                   const typename M::Constants&, const typename M::Results&,
                                                   const int64_t (&)[kMapAxes]) {}
};

// Second launch: one cluster computes the scale of all valid rows.
template <class M>
struct TensorScale {
  using Reducer = decltype(M::reducer(At<M::kStages - 1>{}));
  static constexpr int kThreads = M::kScaleThreads, kSpan = M::kScaleCtas * kThreads;
  static_assert(kThreads / 32 <= M::kScaleSlots, "as the binding launches it");

  static __device__ __forceinline__ void run(const typename M::Params& p) {
    wait_for_previous();
    allow_dependents();
    const int64_t count = min(valid_rows(p), p.size[0]) * (p.rows / p.size[0]);
    typename Reducer::State all = joined_from(static_cast<const float*>(p.operand[M::kMost]), count);
    all = join_warps<Reducer, kThreads / 32, M::kScaleCtas>(all, static_cast<int>(threadIdx.x) / 32, 0);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      typename M::Results results{};
      M::keep(At<M::kStages - 1>{}, results, all);
      M::template store_value<typename M::Scale>(p.operand[M::kScale], 0, M::scale_of(results));
    }
    if constexpr (M::kScaleCtas > 1) cluster_arrive(), cluster_wait();  // other CTAs may still read this CTA's states
  }

 private:
  static __device__ __forceinline__ typename Reducer::State joined_from(const float* most, int64_t count) {
    typename Reducer::State all = Reducer::none();
#pragma unroll 8
    for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += kSpan) Reducer::add(all, most[i], 0);
    return join_lanes<Reducer, 32>(all);
  }
};

}  // namespace opfacade
