// The kernel for rows with a small k: teams draw them from short lists, and a cluster holds the others, one after another.
#pragma once
#include "kernels/sampling/filtered.cuh"
#include "kernels/sampling/teams.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void sample_short_k(const SampleParams& p) {
  sample_in_teams<C>(p, [&](uint32_t at) { draw_row<C>(p, at); });
}

}  // namespace opfacade
