// Rotation of heads of q and k by the angles of their rows' positions. Memory-bound: a lane keeps one unit of a head, two runs
// of 16 bytes that hold both elements of each pair, and the unit's angles, and takes that unit of several heads of the row.
// Their loads are issued before the position is needed. In place only the rotated elements are read and written.
#pragma once
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/rotary/angles.cuh"

namespace opfacade {

// How the lanes of a warp share the units of heads.
template <class C, bool kWide>
struct HeadUnits {
  using Cut = UnitCut<C, true, kWide>;
  using Bits = typename Element<typename C::New>::Bits;
  using Raw = Fetched<typename C::New, Cut::kRun>;
  static constexpr int kLanes = Cut::kUnits < 32 ? Cut::kUnits : 32, kHeads = 32 / kLanes, kMany = kWide ? 4 : 1;

  // The first element of a run in its head. The rotated elements start at element kOffset.
  static __device__ __forceinline__ int element(const Unit& unit, int run) {
    if (unit.rotates) return C::kOffset + run;
    const int rest = run - Cut::kRotated;
    return rest < C::kOffset ? rest : run;
  }
};

// A run as it is stored; two adjacent 16-bit elements are stored by one instruction.
template <class T, int kRun>
struct PackedRun {
  using Bits = typename Element<T>::Bits;
  static constexpr bool kPairs = sizeof(Bits) == 2 && kRun % 2 == 0;
  static __device__ __forceinline__ void store(Bits* to, const float* x) {
    if constexpr (kPairs) {
      Run<uint32_t, kRun / 2> packed;
#pragma unroll
      for (int i = 0; i < kRun / 2; ++i) packed.e[i] = T::pack(x[2 * i], x[2 * i + 1]);
      *reinterpret_cast<Run<uint32_t, kRun / 2>*>(to) = packed;
    } else {
      using Out = Stored<T, kRun>;
      *reinterpret_cast<typename Out::Packed*>(to) = Out::pack(x);
    }
  }
};

// The heads of one row of q and k, as input or as output.
template <class Bits>
struct RowHeads {
  char *q, *k;
  int64_t q_head, k_head;
  int q_heads;

  __device__ __forceinline__ RowHeads(const RotaryHeads& of_q, const RotaryHeads& of_k, int q_heads, int64_t row)
      : q(static_cast<char*>(of_q.data) + row * of_q.row), k(static_cast<char*>(of_k.data) + row * of_k.row), q_head(of_q.head),
        k_head(of_k.head), q_heads(q_heads) {}
  __device__ __forceinline__ Bits* operator[](int head) const {
    const bool of_q = head < q_heads;
    return reinterpret_cast<Bits*>((of_q ? q : k) + (head - (of_q ? 0 : q_heads)) * (of_q ? q_head : k_head));
  }
};

template <class C, bool kWide>
__device__ __forceinline__ void rotate_heads(const RotaryParams& p, int64_t row, int first, int stop) {
  using H = HeadUnits<C, kWide>;
  using Cut = typename H::Cut;
  using Bits = typename H::Bits;
  using Out = PackedRun<typename C::New, Cut::kRun>;
  constexpr int kTurns = (Cut::kUnits + H::kLanes - 1) / H::kLanes;
  const int lane = threadIdx.x % 32, slot = lane / H::kLanes;
  const RowHeads<const Bits> from(p.q, p.k, p.q_heads, row);
  const RowHeads<Bits> to(C::kInPlace ? p.q : p.q_out, C::kInPlace ? p.k : p.k_out, p.q_heads, row);
  wait_for_previous();
  allow_dependents();
  const int64_t valid = C::kCounted ? *p.num_valid : p.rows;
  RowAngles<C> angles;
  angles.load(p.positions, p.position_step, row);
#pragma unroll 1
  for (int turn = 0; turn < kTurns; ++turn) {
    const int u = lane % H::kLanes + turn * H::kLanes;
    if (Cut::kUnits % H::kLanes != 0 && u >= Cut::kUnits) return;
    const Unit unit = Cut::unit(u);
    Rotation<C, Cut> rotation;
#pragma unroll 1
    for (int base = first; base < stop; base += H::kMany * H::kHeads) {
      typename H::Raw raw[H::kMany][2];
#pragma unroll
      for (int j = 0; j < H::kMany; ++j) {
        const int head = base + j * H::kHeads + slot;
        if (slot >= H::kHeads || head >= stop) continue;
        const Bits* x = from[head];
        raw[j][0] = *reinterpret_cast<const typename H::Raw*>(x + H::element(unit, unit.a));
        if (Cut::has_b(unit)) raw[j][1] = *reinterpret_cast<const typename H::Raw*>(x + H::element(unit, unit.b));
      }
      if (base == first) {
        if (!angles.clamp(p.table.positions) || row >= valid || valid > p.rows) return;
        if (unit.rotates) angles.fetch(rotation, p.table, unit);
      }
#pragma unroll
      for (int j = 0; j < H::kMany; ++j) {
        const int head = base + j * H::kHeads + slot;
        if (slot >= H::kHeads || head >= stop) continue;
        Bits* x = to[head];
        float values[2 * Cut::kRun];
#pragma unroll
        for (int i = 0; i < 2 * Cut::kRun; ++i) values[i] = raw[j][i / Cut::kRun].at(i % Cut::kRun);
        if (unit.rotates) rotation.template apply_rounded<C::kInverse>(values);
        Out::store(x + H::element(unit, unit.a), values);
        if (Cut::has_b(unit)) Out::store(x + H::element(unit, unit.b), values + Cut::kRun);
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void rotary(const RotaryParams& p) {
  const int64_t row = blockIdx.x;
  const int64_t first_head = int64_t{blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32} * p.heads_each;
  if (first_head >= p.heads) return;
  const int first = static_cast<int>(first_head);
  const int stop = min(first + p.heads_each, p.heads);
  constexpr bool kFits = C::kOffset % UnitCut<C, true, true>::kRun == 0;
  if (kFits && p.aligned) rotate_heads<C, kFits>(p, row, first, stop);
  else rotate_heads<C, false>(p, row, first, stop);
}

}  // namespace opfacade
