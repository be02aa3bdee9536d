// The tensors of a map: how a thread loads elements and vectors of each input and stores results. A program M, which a template
// prints, is a MapOperands with expressions.
#pragma once
#include "kernels/elementwise/map_params.h"
#include "kernels/elementwise/pack.cuh"
#include "kernels/elementwise/pairs.cuh"
#include "kernels/elementwise/record.cuh"

namespace opfacade {

// kHasOwnAxes: the input is read at computed positions. kMayLackAxes: the input may be the same in all rows, or along a row.
template <class T, bool kHasOwnAxes = false, bool kMayLackAxes = false>
struct MapInput {
  using Type = T;
  static constexpr bool kIsOwn = kHasOwnAxes, kIsPartial = kMayLackAxes;
};
template <class... I>
struct MapInputs {};
template <class... T>
struct MapOutputs {};

template <class P, int kVector, class In, class Out>
struct MapOperands;

template <class P, int kVector, class... I, class... T>
struct MapOperands<P, kVector, MapInputs<I...>, MapOutputs<T...>> {
  using Params = P;
  static constexpr int kInputs = sizeof...(I), kOperands = kInputs + sizeof...(T), kVec = kVector;
  using Element = Record<typename Stored<typename I::Type>::Value...>;
  using Result = Record<typename Stored<T>::Value...>;
  using Inputs = Record<Pack<typename I::Type, kVec>...>;
  using Outputs = Record<Pack<T, kVec>...>;
  using OfInputs = typename IndicesOf<sizeof...(I)>::Type;
  using OfOutputs = typename IndicesOf<sizeof...(T)>::Type;
  template <int k>
  using InputOf = typename Nth<k, I...>::Type;
  template <int k>
  using OutputOf = typename Nth<k, T...>::Type;

  // Loads and stores of single elements.
  static __device__ __forceinline__ Element load_one(const Params& p, const int64_t (&at)[kOperands]) {
    return load_one(p, at, OfInputs{});
  }
  static __device__ __forceinline__ void store_one(const Params& p, const int64_t (&at)[kOperands], const Result& out) {
    store_one(p, at, out, OfOutputs{});
  }

  // Loads the elements `from` .. `to` - 1 of vectors that begin at any address.
  static __device__ __forceinline__ void fetch(Inputs& in, const Params& p, const int64_t (&at)[kOperands], int from, int to) {
    fetch(in, p, at, from, to, OfInputs{});
  }
  static __device__ __forceinline__ void store(Outputs& out, const Params& p, const int64_t (&at)[kOperands], int from,
                                               int to) {
    store(out, p, at, from, to, OfOutputs{});
  }
  // The number of elements by which vectors of the first result begin after an aligned address.
  static __device__ __forceinline__ int late(const Params& p, const int64_t (&at)[kOperands]) {
    return Pack<OutputOf<0>, kVec>::late(p.operand[kInputs], at[kInputs]);
  }
  // Loads whole vectors. again: `first` was loaded in the same column, and contains the inputs that are the same in all rows.
  static __device__ __forceinline__ void fetch_whole(Inputs& in, const Inputs& first, const Params& p,
                                                     const int64_t (&at)[kOperands], bool again) {
    fetch_whole(in, first, p, at, again, OfInputs{});
  }
  static __device__ __forceinline__ void store_whole(Outputs& out, const Params& p, const int64_t (&at)[kOperands]) {
    store_whole(out, p, at, OfOutputs{});
  }
  // Copies an input that has a single element to all positions.
  static __device__ __forceinline__ void spread(Inputs& in, const Params& p) { spread(in, p, OfInputs{}); }

  static __device__ __forceinline__ Element element(const Inputs& in, int i) { return element(in, i, OfInputs{}); }
  static __device__ __forceinline__ void put(Outputs& out, int i, const Result& of) { put(out, i, of, OfOutputs{}); }
  static __device__ __forceinline__ void put(Outputs& out, int i, const Result& one, const Result& next) {
    put(out, i, one, next, OfOutputs{});
  }

 private:
  template <int... k>
  static __device__ __forceinline__ Element load_one(const Params& p, const int64_t (&at)[kOperands], Indices<k...>) {
    return {one<k>(p, at)...};
  }
  template <int k>
  static __device__ __forceinline__ typename Stored<typename InputOf<k>::Type>::Value one(const Params& p,
                                                                                          const int64_t (&at)[kOperands]) {
    using S = Stored<typename InputOf<k>::Type>;
    if constexpr (InputOf<k>::kIsOwn) return {};
    else return S::load(static_cast<const typename S::Bits*>(p.operand[k])[at[k]]);
  }
  template <int... k>
  static __device__ __forceinline__ void store_one(const Params& p, const int64_t (&at)[kOperands], const Result& out,
                                                   Indices<k...>) {
    (store_value<k>(p, at[kInputs + k], out.template get<k>()), ...);
  }
  template <int k>
  static __device__ __forceinline__ void store_value(const Params& p, int64_t at, typename Stored<OutputOf<k>>::Value value) {
    using S = Stored<OutputOf<k>>;
    static_cast<typename S::Bits*>(p.operand[kInputs + k])[at] = S::store(value);
  }

  template <int... k>
  static __device__ __forceinline__ void fetch(Inputs& in, const Params& p, const int64_t (&at)[kOperands], int from, int to,
                                               Indices<k...>) {
    (in.template get<k>().load_some(p.operand[k], at[k], p.stride[k][p.rank - 1], p.span[k], from, to), ...);
  }
  template <int... k>
  static __device__ __forceinline__ void store(Outputs& out, const Params& p, const int64_t (&at)[kOperands], int from, int to,
                                               Indices<k...>) {
    (out.template get<k>().store_some(p.operand[kInputs + k], at[kInputs + k], from, to), ...);
  }
  template <int... k>
  static __device__ __forceinline__ void fetch_whole(Inputs& in, const Inputs& first, const Params& p,
                                                     const int64_t (&at)[kOperands], bool again, Indices<k...>) {
    (fetch_one<k>(in.template get<k>(), first.template get<k>(), p, at[k], again), ...);
  }
  template <int k, class Vector>
  static __device__ __forceinline__ void fetch_one(Vector& in, const Vector& first, const Params& p, int64_t at, bool again) {
    if constexpr (InputOf<k>::kIsPartial) {
      if (again && p.shared >> k & 1) in = first;
      else in.load_whole(p.operand[k], at, p.wide >> k & 1);
    } else {
      in.load_whole(p.operand[k], at, true);
    }
  }
  template <int... k>
  static __device__ __forceinline__ void store_whole(Outputs& out, const Params& p, const int64_t (&at)[kOperands],
                                                     Indices<k...>) {
    (out.template get<k>().store(p.operand[kInputs + k], at[kInputs + k], true, kVec), ...);
  }
  template <int... k>
  static __device__ __forceinline__ void spread(Inputs& in, const Params& p, Indices<k...>) {
    (spread_one<k>(in.template get<k>(), p), ...);
  }
  template <int k, class Vector>
  static __device__ __forceinline__ void spread_one(Vector& in, const Params& p) {
    if constexpr (InputOf<k>::kIsPartial) {
      if (!(p.wide >> k & 1)) in.spread();
    }
  }

  template <int... k>
  static __device__ __forceinline__ Element element(const Inputs& in, int i, Indices<k...>) {
    return {Stored<typename InputOf<k>::Type>::load(in.template get<k>().bits(i))...};
  }
  template <int... k>
  static __device__ __forceinline__ void put(Outputs& out, int i, const Result& of, Indices<k...>) {
    (out.template get<k>().set_bits(i, Stored<OutputOf<k>>::store(of.template get<k>())), ...);
  }
  template <int... k>
  static __device__ __forceinline__ void put(Outputs& out, int i, const Result& one, const Result& next, Indices<k...>) {
    (PairsOf<OutputOf<k>>::set(out.template get<k>(), i, one.template get<k>(), next.template get<k>()), ...);
  }
};

}  // namespace opfacade
