// Chunks of a row: groups of four tokens whose loads are in flight together.
#pragma once
#include "kernels/sampling/row.cuh"

namespace opfacade {

constexpr uint32_t kGroupStep = 4 * kSampleThreads;  // distance between consecutive groups of a thread
template <class C>
constexpr int kAdjusted = int{C::kPenalties} + int{C::kBias} + int{C::kBiasList} + int{C::kSoftCap};  // each takes code and registers
template <class C>
constexpr int kGroupsAhead = kAdjusted<C> > 1 ? 2 : kAdjusted<C> == 1 ? 4 : C::kBitmask ? 6 : 8;

}  // namespace opfacade
