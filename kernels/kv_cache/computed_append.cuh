// Appends rows that change on their way: K is rotated by the angles of its position, and rows are divided by a factor and
// cast into an fp8 cache. In f32, rounded once. A lane has four neighbours of a row at a time, one vector load and store;
// of a half-split rotation the other of a pair is in the cache by then.
#pragma once
#include "kernels/common/dtype.cuh"
#include "kernels/common/fp8.cuh"
#include "kernels/kv_cache/append.cuh"

namespace opfacade {

enum class Rope { kNone, kInterleaved, kHalf };

template <class T>
struct alignas(4 * sizeof(typename Element<T>::Bits)) Four {
  typename Element<T>::Bits e[4];
};

// How four numbers lie in the cache.
template <class T>
struct Stored {
  using Packed = Four<T>;
  static __device__ __forceinline__ Packed pack(const float (&x)[4]) {
    return {Element<T>::store(x[0]), Element<T>::store(x[1]), Element<T>::store(x[2]), Element<T>::store(x[3])};
  }
  using Single = typename Element<T>::Bits;
};
template <class T>
struct StoredByte {
  struct alignas(4) Packed {
    uint8_t e[4];
  };
  static __device__ __forceinline__ Packed pack(const float (&x)[4]) {
    const uint32_t lo = T::narrow(x[0], x[1]), hi = T::narrow(x[2], x[3]);
    return {{static_cast<uint8_t>(lo), static_cast<uint8_t>(lo >> 8), static_cast<uint8_t>(hi), static_cast<uint8_t>(hi >> 8)}};
  }
  using Single = uint8_t;
};
template <>
struct Stored<E4M3> : StoredByte<E4M3> {};
template <>
struct Stored<E5M2> : StoredByte<E5M2> {};

// One row of new elements, read as f32.
template <class C>
struct NewRow {
  using Bits = typename Element<typename C::New>::Bits;
  const Bits* data;
  bool aligned;

  __device__ __forceinline__ float at(int i) const { return Element<typename C::New>::load(data[i]); }
  __device__ __forceinline__ void four(int first, float (&x)[4]) const {
    if (aligned) {
      const Four<typename C::New> all = *reinterpret_cast<const Four<typename C::New>*>(data + first);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = Element<typename C::New>::load(all.e[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = first + i < C::kHeadDim ? at(first + i) : 0.f;
    }
  }
};

// Element i of a pair (x, y) turned by an angle: the first of a pair is x cos - y sin, the second x cos + y sin.
template <class C>
__device__ __forceinline__ float rotated(const NewRow<C>& row, const float* angles, int i, float x) {
  constexpr int kPairs = C::kRotated / 2;
  const bool second = C::kRope == Rope::kHalf ? i >= kPairs : i % 2;
  const int pair = C::kRope == Rope::kHalf ? i - (second ? kPairs : 0) : i / 2;
  const int other = C::kRope == Rope::kHalf ? (second ? i - kPairs : i + kPairs) : i ^ 1;
  const float turned = row.at(other) * angles[kPairs + pair];
  return fmaf(x, angles[pair], second ? turned : -turned);
}

template <class C>
__device__ __forceinline__ void store_four(char* dst, int first, const float (&x)[4], bool aligned) {
  using Out = Stored<typename C::Cache>;
  const typename Out::Packed packed = Out::pack(x);
  typename Out::Single* at = reinterpret_cast<typename Out::Single*>(dst) + first;
  if (aligned) {
    *reinterpret_cast<typename Out::Packed*>(at) = packed;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i < C::kHeadDim) at[i] = packed.e[i];
  }
}

template <class C, bool kRotate>
__device__ __forceinline__ void compute_row(const NewRow<C>& row, const float* angles, float factor, char* dst, bool aligned) {
  for (int first = threadIdx.x % 32 * 4; first < C::kHeadDim; first += 128) {
    float x[4];
    row.four(first, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (kRotate && first + i < C::kRotated) x[i] = rotated<C>(row, angles, first + i, x[i]);
      if constexpr (C::kScaled) x[i] = x[i] / factor;
    }
    store_four<C>(dst, first, x, aligned);
  }
}

// The heads of K or V, to their place.
template <class C, bool kRotate>
__device__ __forceinline__ void append_computed(const ComputedAppendParams& p, const NewRows& rows, const PoolTensor& pool,
                                                const float* scale, const Share& share, const NewPlace& place) {
  const bool aligned = p.base.aligned && C::kHeadDim % 4 == 0;
  const float* angles = kRotate ? p.angles + static_cast<int64_t>(min(place.position, p.positions - 1)) * p.angle_stride : nullptr;
  for (int head = 0; head < share.heads; ++head) {
    const NewRow<C> row{reinterpret_cast<const typename NewRow<C>::Bits*>(new_heads(rows, share) + head * rows.head_stride), aligned};
    const float factor = C::kScaled ? scale[(share.head + head) * p.scale_stride] : 1.f;
    compute_row<C, kRotate>(row, angles, factor, pool_heads(pool, place, share) + head * pool.head_stride, aligned);
  }
}

template <class C>
__device__ __forceinline__ void append_plain(const AppendParams& p, const NewRows& rows, const PoolTensor& pool,
                                             const Share& share, const NewPlace& place) {
  using Single = typename Bits<C::kElemBytes>::Type;
  for (int i = threadIdx.x % 32; i < share.heads * C::kHeadDim; i += 32) {
    const int head = i / C::kHeadDim, at = i % C::kHeadDim;
    reinterpret_cast<Single*>(pool_heads(pool, place, share) + head * pool.head_stride)[at] =
        reinterpret_cast<const Single*>(new_heads(rows, share) + head * rows.head_stride)[at];
  }
}

template <class C>
__device__ __forceinline__ void computed_append(const ComputedAppendParams& p) {
  Share share;
  NewPlace place;
  if (!find_share(p.base, share) || !find_place<C>(p.base, share.row, place)) return;
  append_computed<C, C::kRope != Rope::kNone>(p, p.base.k_new, p.base.k, p.k_scale, share, place);
  if constexpr (C::kQuantises) {
    append_computed<C, false>(p, p.base.v_new, p.base.v, p.v_scale, share, place);
  } else {
    append_plain<C>(p.base, p.base.v_new, p.base.v, share, place);
  }
}

}  // namespace opfacade
