// Append of transformed rows: K is rotated by the angles of its position (RoPE), and rows are divided by a factor and cast to
// fp8. The arithmetic is f32, rounded once. As in append.cuh, a warp takes several heads of a row and loads them before the
// lookup. The heads share the row's angles.
#pragma once
#include "kernels/common/quotient.cuh"
#include "kernels/kv_cache/append.cuh"
#include "kernels/kv_cache/unit.cuh"

namespace opfacade {

// The transformation of the rows of one tensor.
template <class C>
struct Change {
  const typename Element<typename C::Angle>::Bits* angles;  // angles of the position, or null
  const float* scale;
};

// The units of one tensor in a lane: kMany of the units of each head.
template <class C, bool kRotate, bool kWide>
struct HeldUnits {
  using Cut = UnitCut<C, kRotate, kWide>;
  using New = typename Element<typename C::New>::Bits;
  using Raw = Fetched<typename C::New, Cut::kRun>;
  static constexpr int kPerHead = Cut::kUnits;
  static constexpr int kMany = 64 / (2 * sizeof(Raw)) < 4 ? 64 / (2 * sizeof(Raw)) : 4;
  static constexpr int kStep = 32 * kMany;
  static constexpr bool kOnce = kWide && sizeof(Raw) == 16 && kPerHead <= kStep;  // see heads_of_a_warp
  // all units of a lane have the same position in their heads
  static constexpr bool kLoadsAhead = kRotate && 32 % kPerHead == 0;
  static constexpr bool kShort = sizeof(New) == 2 && !kRotate, kOneScale = C::kScaled && !C::kHeadScales;
  Raw raw[kMany][2];
  Rotation<C, Cut> rotation;
  float scale;  // stride over all heads

  static __device__ __forceinline__ int index(int first, int j) { return first + j * 32 + threadIdx.x % 32; }

  __device__ __forceinline__ void load(const NewRows& rows, const Share& share, int first) {
    const char* src = new_heads(rows, share);
#pragma unroll
    for (int j = 0; j < kMany; ++j) {
      const int i = index(first, j);
      if (i >= share.heads * kPerHead) continue;
      const New* head = reinterpret_cast<const New*>(src + i / kPerHead * rows.head_stride);
      const Unit unit = Cut::unit(i % kPerHead);
      raw[j][0] = *reinterpret_cast<const Raw*>(head + unit.a);
      if (Cut::has_b(unit)) raw[j][1] = *reinterpret_cast<const Raw*>(head + unit.b);
    }
  }

  // Issues the loads of the angles and of the factor early, so that they overlap the load of the page table's entry.
  __device__ __forceinline__ void prepare(const Change<C>& change) {
    const Unit unit = Cut::unit(threadIdx.x % 32 % kPerHead);
    if (kLoadsAhead && unit.rotates) rotation.load(change.angles, unit), rotation.keep_here();
    if constexpr (kOneScale) {
      scale = *change.scale;
      keep_load_here(scale);
    }
  }
  __device__ __forceinline__ void store(const PoolTensor& pool, const Share& share, int first, const NewPlace& place,
                                        const Change<C>& change) {
    char* dst = pool_heads(pool, place, share);
    Divisor by;
#pragma unroll
    for (int j = 0; j < kMany; ++j) {
      const int i = index(first, j);
      if (i >= share.heads * kPerHead) continue;
      const Unit unit = Cut::unit(i % kPerHead);
      float x[2 * Cut::kRun];
#pragma unroll
      for (int k = 0; k < 2 * Cut::kRun; ++k) x[k] = raw[j][k / Cut::kRun].at(k % Cut::kRun);
      if (kRotate && unit.rotates) {
        if (!kLoadsAhead) rotation.load(change.angles, unit);
        rotation.apply(x);
      }
      if constexpr (C::kScaled) {
        if (j == 0 || C::kHeadScales) by = Divisor(kOneScale ? scale : change.scale[share.head + i / kPerHead]);
        by.template divide<kShort>(x);
      }
      store_unit<C, Cut>(dst + i / kPerHead * pool.head_stride, unit, x);
    }
  }
};

template <class C, bool kWide>
constexpr bool kCopiesPieces = kWide && C::kHeadDim * C::kElemBytes % 16 == 0;

// V is never rotated, only quantised or copied.
template <class C, bool kWide, bool kQuantises, bool kPieces>
struct VUnits : HeldUnits<C, false, kWide> {};
template <class C, bool kWide>
struct VUnits<C, kWide, false, true> : HeldPieces<C, uint4> {};
template <class C, bool kWide>
struct VUnits<C, kWide, false, false> : HeldPieces<C, typename Bits<C::kElemBytes>::Type> {};

template <class C, bool kWide>
__device__ __forceinline__ void append_units(const ComputedAppendParams& all, const Share& share) {
  const AppendParams& p = all.base;
  HeldUnits<C, C::kRope != Rope::kNone, kWide> k;
  VUnits<C, kWide, C::kQuantises, kCopiesPieces<C, kWide>> v;
  k.load(p.k_new, share, 0);
  v.load(p.v_new, share, 0);
  NewPlace place;
  if (!find_entry<C>(p, share.row, place)) return;
  Change<C> of_k{nullptr, all.k_scale};
  const Change<C> of_v{nullptr, all.v_scale};
  if (C::kRope != Rope::kNone)
    of_k.angles = static_cast<decltype(of_k.angles)>(all.angles) + static_cast<int64_t>(min(place.position, all.positions - 1)) * all.angle_stride;
  k.prepare(of_k);
  if constexpr (C::kQuantises) v.prepare(of_v);
  // Without a branch on the page: with one, ptxas would move the loads of the angles after it.
  const Share stored{share.row, share.head, in_pool<C>(p, place) ? share.heads : 0};
  const auto put_k = [&] {
    k.store(p.k, stored, 0, place, of_k);
    append_rest(k, p.k_new, p.k, stored, place, of_k);
  };
  const auto put_v = [&] {
    v.store(p.v, stored, 0, place, of_v);
    append_rest(v, p.v_new, p.v, stored, place, of_v);
  };
  // Angles that were loaded ahead arrive while V is stored. Otherwise K is finished first, to release its registers.
  if constexpr (decltype(k)::kLoadsAhead) {
    put_v(), put_k();
  } else {
    put_k(), put_v();
  }
}

template <class C>
__device__ __forceinline__ void computed_append(const ComputedAppendParams& p) {
  Share share;
  if (!find_share(p.base, share)) return;
  if (p.base.aligned) {
    append_units<C, true>(p, share);
  } else {
    append_units<C, false>(p, share);
  }
}

}  // namespace opfacade
