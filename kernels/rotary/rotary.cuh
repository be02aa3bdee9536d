// Rotation of heads of q and k by the angles of their rows' positions. Memory-bound: a lane keeps one unit of a head, two runs of 16
// bytes that hold both elements of each pair, and the unit's angles, and takes that unit of several heads of the row. Their loads are
// issued before the position is needed. In place only the rotated elements are read and written.
#pragma once
#include "kernels/rotary/angles.cuh"

namespace opfacade {

// How the lanes of a warp share the units of heads.
template <class C, bool kWide>
struct HeadUnits {
  using Cut = UnitCut<C, true, kWide>;
  using Bits = typename Element<typename C::New>::Bits;
  using Raw = Fetched<typename C::New, Cut::kRun>;
  static constexpr int kLanes = Cut::kUnits < 32 ? Cut::kUnits : 32, kHeads = 32 / kLanes, kMany = kWide ? 4 : 1;

  // The first element of a run in its head: rotated ones lie behind kOffset others.
  static __device__ __forceinline__ int element(const Unit& unit, int run) {
    if (unit.rotates) return C::kOffset + run;
    const int rest = run - Cut::kRotated;
    return rest < C::kOffset ? rest : run;
  }
};

template <class C, bool kWide>
__device__ __forceinline__ void rotate_heads(const RotaryParams& p, int64_t row, int first, int stop) {
  using H = HeadUnits<C, kWide>;
  using Cut = typename H::Cut;
  using Bits = typename H::Bits;
  const int lane = threadIdx.x % 32, slot = lane / H::kLanes;
  const int64_t valid = p.num_valid == nullptr ? p.rows : *p.num_valid;
  RowAngles<C> angles;
  angles.load(p.positions, p.rows, row);
#pragma unroll 1
  for (int u = lane % H::kLanes; u < Cut::kUnits; u += H::kLanes) {
    const Unit unit = Cut::unit(u);
    Rotation<C, Cut> rotation;
#pragma unroll 1
    for (int base = first; base < stop; base += H::kMany * H::kHeads) {
      typename H::Raw raw[H::kMany][2];
#pragma unroll
      for (int j = 0; j < H::kMany; ++j) {
        const int head = base + j * H::kHeads + slot;
        if (slot >= H::kHeads || head >= stop) continue;
        const bool of_q = head < p.q_heads;
        const RotaryTensor& x = of_q ? p.q : p.k;
        const Bits* from = reinterpret_cast<const Bits*>(static_cast<const char*>(x.from) + row * x.from_row + (of_q ? head : head - p.q_heads) * x.from_head);
        raw[j][0] = *reinterpret_cast<const typename H::Raw*>(from + H::element(unit, unit.a));
        if (Cut::has_b(unit)) raw[j][1] = *reinterpret_cast<const typename H::Raw*>(from + H::element(unit, unit.b));
      }
      if (base == first) {
        if (!angles.clamp(p.table.positions) || row >= valid || valid > p.rows) return;
        if (unit.rotates) angles.fetch(rotation, p.table, unit);
      }
#pragma unroll
      for (int j = 0; j < H::kMany; ++j) {
        const int head = base + j * H::kHeads + slot;
        if (slot >= H::kHeads || head >= stop) continue;
        const bool of_q = head < p.q_heads;
        const RotaryTensor& x = of_q ? p.q : p.k;
        Bits* to = reinterpret_cast<Bits*>(static_cast<char*>(x.to) + row * x.to_row + (of_q ? head : head - p.q_heads) * x.to_head);
        float values[2 * Cut::kRun];
#pragma unroll
        for (int i = 0; i < 2 * Cut::kRun; ++i) values[i] = raw[j][i / Cut::kRun].at(i % Cut::kRun);
        if (unit.rotates) rotation.template apply_rounded<C::kInverse>(values);
        using Out = Stored<typename C::New, Cut::kRun>;
        *reinterpret_cast<typename Out::Packed*>(to + H::element(unit, unit.a)) = Out::pack(values);
        if (Cut::has_b(unit)) *reinterpret_cast<typename Out::Packed*>(to + H::element(unit, unit.b)) = Out::pack(values + Cut::kRun);
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void rotary(const RotaryParams& p) {
  const int64_t warp = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const bool narrow = warp < int64_t{1} << 32;
  const int64_t row = narrow ? int64_t{static_cast<uint32_t>(warp) / static_cast<uint32_t>(p.items)} : warp / p.items;
  if (row >= p.rows) return;
  const int first = static_cast<int>(warp - row * p.items) * p.heads_each, stop = min(first + p.heads_each, p.heads);
  constexpr bool kFits = C::kOffset % UnitCut<C, true, true>::kRun == 0;
  if (kFits && p.aligned) rotate_heads<C, kFits>(p, row, first, stop);
  else rotate_heads<C, false>(p, row, first, stop);
}

}  // namespace opfacade
