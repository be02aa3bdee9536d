// Rows over a program M whose results share one scale, in three launches. The first folds rows and keeps the largest |result|
// of each; the second joins these and writes the scale; the third folds rows again, reads the scale and writes the results.
// Both passes over the rows have the same code and lanes, so that the largest result is one of those that are divided. Maxima
// are in the workspace, so that no atomics and no initialisation are needed.
#pragma once
#include "kernels/reduction/fold.cuh"

namespace opfacade {

// All stages, of which the last is the largest |result|, and no elements.
template <class M>
struct MostPass : M {
  static constexpr bool kFullOutputs = false;
};

// All stages but the last, and the elements.
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

constexpr int kScaleThreads = 512;

// The scale of all valid rows, by one cluster.
template <class M>
struct TensorScale {
  using Reducer = decltype(M::reducer(At<M::kStages - 1>{}));
  static constexpr int kSpan = M::kScaleCtas * kScaleThreads;

  static __device__ __forceinline__ void run(const typename M::Params& p) {
    wait_for_previous();
    allow_dependents();
    const int64_t count = min(valid_rows(p), p.size[0]) * (p.rows / p.size[0]);
    typename Reducer::State all = joined_from(static_cast<const float*>(p.operand[M::kMost]), count);
    all = join_warps<Reducer, kScaleThreads / 32, M::kScaleCtas>(all, static_cast<int>(threadIdx.x) / 32, 0);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      typename M::Results results{};
      M::keep(At<M::kStages - 1>{}, results, all);
      M::template store_value<typename M::Scale>(p.operand[M::kScale], 0, M::scale_of(results));
    }
    if constexpr (M::kScaleCtas > 1) cluster_arrive(), cluster_wait();  // others read what this CTA shows
  }

 private:
  static __device__ __forceinline__ typename Reducer::State joined_from(const float* most, int64_t count) {
    typename Reducer::State all = Reducer::none();
#pragma unroll 8
    for (int64_t i = blockIdx.x * kScaleThreads + threadIdx.x; i < count; i += kSpan) Reducer::add(all, most[i], 0);
    return join_lanes<Reducer, 32>(all);
  }
};

}  // namespace opfacade
