// Shared memory of the kernels that hold the logits of a row: the state of the row, lists of candidates (FilterLists, or
// ShortShared in the path short_k), then the logits that the CTA holds. In short_k a row is either held, or drawn by a team of
// CTAs, whose lists use the memory of the held logits.
#pragma once
#include "kernels/sampling/shortlist.cuh"

namespace opfacade {

// Candidates of a row whose filters keep few tokens: those of this CTA, and those of all CTAs of the cluster.
struct FilterLists {
  uint64_t own[kOwnListed], all[kListed];

  __device__ __forceinline__ CandidateList view() { return {own, all, kOwnListed, kListed}; }
};

struct alignas(16) FilterShared {
  union {
    HeldShared held;
    uint8_t room_of_held[kHeldShared];
  };
  union {
    FilterLists lists;
    ShortShared short_k;
  };

  __device__ __forceinline__ float* logits() { return reinterpret_cast<float*>(this + 1); }
  __device__ __forceinline__ uint64_t* team_lists() { return reinterpret_cast<uint64_t*>(this + 1); }
};
static_assert(sizeof(FilterShared) == kFilterShared, "as the binding launches it");

__device__ __forceinline__ FilterShared& filter_shared() { return *reinterpret_cast<FilterShared*>(dynamic_shared()); }

}  // namespace opfacade
