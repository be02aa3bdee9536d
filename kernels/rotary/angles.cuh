// The angles of a row: its positions, one for each section of the pairs, and their rows of the table. A position past the table
// uses its last row; a row with a negative position is skipped.
#pragma once
#include "kernels/kv_cache/unit.cuh"
#include "kernels/rotary/rotary_params.h"

namespace opfacade {

template <class C>
struct RowAngles {
  using Angle = Element<typename C::Angle>;
  using Bits = typename Angle::Bits;
  using Index = typename C::Index;
  int64_t position[C::kSections];

  // step: elements between the positions of consecutive sections.
  __device__ __forceinline__ void load(const void* positions, int64_t step, int64_t row) {
#pragma unroll
    for (int s = 0; s < C::kSections; ++s) position[s] = static_cast<const Index*>(positions)[s * step + row];
  }
  // Call it when the positions are needed: their loads overlap other loads.
  __device__ __forceinline__ bool clamp(int64_t count) {
    bool skips = count == 0;
#pragma unroll
    for (int s = 0; s < C::kSections; ++s) {
      skips |= position[s] < 0;
      if (position[s] >= count) position[s] = count - 1;
    }
    return !skips;
  }
  template <class Cut>
  __device__ __forceinline__ void fetch(Rotation<C, Cut>& rotation, const AngleTable& table, const Unit& unit) const {
    const Bits* angles = static_cast<const Bits*>(table.data);
    if constexpr (C::kSections == 1) {
      rotation.load(angles + position[0] * table.stride, unit);
    } else {
#pragma unroll
      for (int k = 0; k < Cut::kRun; ++k) {
        const int pair = Cut::pair(unit, k), section = C::section(pair);
        int64_t at = position[0];
#pragma unroll
        for (int s = 1; s < C::kSections; ++s) at = section == s ? position[s] : at;
        rotation.cosines[k] = Angle::load(angles[at * table.stride + pair]);
        rotation.sines[k] = Angle::load(angles[at * table.stride + pair + Cut::kRotated / 2]);
      }
    }
  }
};

}  // namespace opfacade
