// Norm and rotation of the heads of q and k, and the append of k and v, in one pass over their rows. Lanes share heads as in
// rotary.cuh. The squares of a head are summed over its lanes in a fixed order; a head of more units than a warp has lanes is read
// twice.
#pragma once
#include "kernels/common/quotient.cuh"
#include "kernels/rotary/destination.cuh"
#include "kernels/rotary/rotary.cuh"

namespace opfacade {

// The sum over the lanes of a head; each lane gets the same value.
template <int kLanes>
__device__ __forceinline__ float sum_of_head(float x) {
  if constexpr ((kLanes & (kLanes - 1)) == 0) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
  } else {
    const int first = threadIdx.x % 32 / kLanes * kLanes;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) sum += __shfl_sync(0xffffffffu, x, min(first + i, 31));
    return sum;
  }
}

template <class C, bool kWide>
class PreparedHeads {
  using H = HeadUnits<C, kWide>;
  using Cut = typename H::Cut;
  using Raw = typename H::Raw;
  using New = typename C::New;
  using Bits = typename H::Bits;
  static constexpr int kMany = H::kMany, kChunks = (Cut::kUnits + H::kLanes - 1) / H::kLanes, kRun = Cut::kRun;
  enum Kind { kQ, kK, kV };
  struct Head {
    Kind kind;
    int index;
    bool present;
  };

 public:
  __device__ __forceinline__ PreparedHeads(const QkvPrepareParams& p, int64_t row, int stop)
      : p_(p), row_(row), stop_(stop), lane_(threadIdx.x % 32 % H::kLanes), slot_(threadIdx.x % 32 / H::kLanes) {}

  __device__ __forceinline__ void run(int first) {
    RowAngles<C> angles;
    const int64_t valid = C::kCounted ? *p_.num_valid : p_.rows;
    angles.load(p_.positions, p_.position_step, row_);
    load(first, 0);
    NewPlace place;
    const Goes goes = find_destination<C>(p_, row_, place);
    if (!angles.clamp(p_.table.positions) || goes == Goes::kNone || row_ >= valid || valid > p_.rows) return;
#pragma unroll 1
    for (int base = first; base < stop_; base += kMany * H::kHeads) {
      float factor[kMany];
      if (base != first) load(base, 0);
      if constexpr (C::kNorm) norms(base, factor);
#pragma unroll 1
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int u = chunk * H::kLanes + lane_;
        if (u >= Cut::kUnits) continue;
        if (kChunks > 1) load(base, chunk);
        const Unit unit = Cut::unit(u);
        Rotation<C, Cut> rotation;
        if (unit.rotates) angles.fetch(rotation, p_.table, unit);
#pragma unroll
        for (int j = 0; j < kMany; ++j) finish(head_of(base, j), raw_[j], unit, rotation, C::kNorm ? factor[j] : 1.f, goes, place);
      }
    }
  }

 private:
  __device__ __forceinline__ Head head_of(int base, int j) const {
    const int head = base + j * H::kHeads + slot_, of_kv = head - p_.q_heads;
    const bool present = slot_ < H::kHeads && head < stop_;
    if (of_kv < 0) return {kQ, head, present};
    return of_kv < p_.kv_heads ? Head{kK, of_kv, present} : Head{kV, of_kv - p_.kv_heads, present};
  }
  __device__ __forceinline__ const Bits* from(const Head& head) const {
    const NewRows& kv = head.kind == kK ? p_.cache.k_new : p_.cache.v_new;
    const bool q = head.kind == kQ;
    const char* data = static_cast<const char*>(q ? p_.q.from : kv.data);
    return reinterpret_cast<const Bits*>(data + row_ * (q ? p_.q.from_row : kv.row_stride) + head.index * (q ? p_.q.from_head : kv.head_stride));
  }
  __device__ __forceinline__ void load(int base, int chunk) {
    const int u = chunk * H::kLanes + lane_;
    if (u >= Cut::kUnits) return;
    const Unit unit = Cut::unit(u);
#pragma unroll
    for (int j = 0; j < kMany; ++j) {
      const Head head = head_of(base, j);
      if (!head.present) continue;
      const Bits* x = from(head);
      raw_[j][0] = *reinterpret_cast<const Raw*>(x + H::element(unit, unit.a));
      if (Cut::has_b(unit)) raw_[j][1] = *reinterpret_cast<const Raw*>(x + H::element(unit, unit.b));
    }
  }
  // The reciprocal root mean square of each head. All lanes of the warp take part.
  __device__ __forceinline__ void norms(int base, float (&factor)[kMany]) {
#pragma unroll
    for (int j = 0; j < kMany; ++j) factor[j] = 0.f;
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int u = chunk * H::kLanes + lane_;
      if (kChunks > 1) load(base, chunk);
      if (u >= Cut::kUnits) continue;
#pragma unroll
      for (int j = 0; j < kMany; ++j) {
        if (!head_of(base, j).present) continue;
        const int count = Cut::has_b(Cut::unit(u)) ? 2 * kRun : kRun;
#pragma unroll
        for (int i = 0; i < 2 * kRun; ++i) {
          const float x = i < count ? raw_[j][i / kRun].at(i % kRun) : 0.f;
          factor[j] = fmaf(x, x, factor[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kMany; ++j)
      factor[j] = rsqrt_approx(fmaf(sum_of_head<H::kLanes>(factor[j]), 1.f / C::kHeadDim, p_.eps));
  }
  static __device__ __forceinline__ float weight(const void* weights, int at) {
    using W = Element<typename C::Weight>;
    const float found = W::load(static_cast<const typename W::Bits*>(weights)[at]);
    return C::kOnePlus ? 1.f + found : found;
  }
  __device__ __forceinline__ void finish(const Head& head, const Raw (&raw)[2], const Unit& unit, const Rotation<C, Cut>& rotation, float factor,
                                         Goes goes, const NewPlace& place) const {
    if (!head.present || (head.kind != kQ && goes != Goes::kStored)) return;
    const int a = H::element(unit, unit.a), b = H::element(unit, unit.b);
    float x[2 * kRun];
#pragma unroll
    for (int i = 0; i < 2 * kRun; ++i) x[i] = raw[i / kRun].at(i % kRun);
    if (head.kind != kV) {
      if constexpr (C::kNorm) {
        const void* weights = head.kind == kQ ? p_.q_weight : p_.k_weight;
#pragma unroll
        for (int i = 0; i < 2 * kRun; ++i)
          if (i < kRun || Cut::has_b(unit)) x[i] = x[i] * factor * weight(weights, (i < kRun ? a : b) + i % kRun);
      }
      if (unit.rotates) rotation.template apply_rounded<false>(x);
    }
    if (head.kind == kQ) {
      char* to = static_cast<char*>(p_.q.to) + row_ * p_.q.to_row + head.index * p_.q.to_head;
      put<New>(to, unit, a, b, x);
    } else {
      const PoolTensor& pool = head.kind == kK ? p_.cache.k : p_.cache.v;
      if constexpr (C::kScaled) {
        const float* scale = head.kind == kK ? p_.k_scale : p_.v_scale;
        Divisor(scale[C::kHeadScales ? head.index : 0]).template divide<false>(x);
      }
      put<typename C::Cache>(const_cast<char*>(token_address(pool, place.page, place.slot, head.index)), unit, a, b, x);
    }
  }
  template <class T>
  static __device__ __forceinline__ void put(char* head, const Unit& unit, int a, int b, const float (&x)[2 * kRun]) {
    using Out = Stored<T, kRun>;
    *reinterpret_cast<typename Out::Packed*>(head + a * Out::kBytes) = Out::pack(x);
    if (Cut::has_b(unit)) *reinterpret_cast<typename Out::Packed*>(head + b * Out::kBytes) = Out::pack(x + kRun);
  }

  const QkvPrepareParams& p_;
  const int64_t row_;
  const int stop_, lane_, slot_;
  Raw raw_[kMany][2];
};

template <class C>
__device__ __forceinline__ void qkv_prepare(const QkvPrepareParams& p) {
  const int64_t warp = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const bool narrow = warp < int64_t{1} << 32;
  const int64_t row = narrow ? int64_t{static_cast<uint32_t>(warp) / static_cast<uint32_t>(p.items)} : warp / p.items;
  if (row >= p.rows) return;
  const int first = static_cast<int>(warp - row * p.items) * p.heads_each, stop = min(first + p.heads_each, p.q_heads + 2 * p.kv_heads);
  constexpr bool kFits = C::kOffset % UnitCut<C, true, true>::kRun == 0;
  if (kFits && p.aligned) PreparedHeads<C, kFits>(p, row, stop).run(first);
  else PreparedHeads<C, false>(p, row, stop).run(first);
}

}  // namespace opfacade
