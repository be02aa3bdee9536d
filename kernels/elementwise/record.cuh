// Values of several types, one for each operand of a program; `get<k>()` returns the value of operand k. Each value is a
// member, so that the compiler keeps each one in registers.
#pragma once

namespace opfacade {

template <int... kIndices>
struct Indices {};
// 0 .. kCount - 1
template <int kCount, int... kLater>
struct IndicesOf : IndicesOf<kCount - 1, kCount - 1, kLater...> {};
template <int... kIndices>
struct IndicesOf<0, kIndices...> {
  using Type = Indices<kIndices...>;
};

// Declared without a type parameter too, because a program may have no inputs.
template <int kIndex, class... T>
struct Nth;
template <int kIndex, class First, class... Rest>
struct Nth<kIndex, First, Rest...> : Nth<kIndex - 1, Rest...> {};
template <class First, class... Rest>
struct Nth<0, First, Rest...> {
  using Type = First;
};

template <int kIndex, class T>
struct Slot {
  T value;
};

template <int kIndex, class T>
__device__ __forceinline__ T& value_of(Slot<kIndex, T>& slot) {
  return slot.value;
}
template <int kIndex, class T>
__device__ __forceinline__ const T& value_of(const Slot<kIndex, T>& slot) {
  return slot.value;
}

template <class Which, class... T>
struct Slots;
template <int... kIndices, class... T>
struct Slots<Indices<kIndices...>, T...> : Slot<kIndices, T>... {
  template <int kIndex>
  __device__ __forceinline__ auto& get() {
    return value_of<kIndex>(*this);
  }
  template <int kIndex>
  __device__ __forceinline__ const auto& get() const {
    return value_of<kIndex>(*this);
  }
};
template <class... T>
using Record = Slots<typename IndicesOf<sizeof...(T)>::Type, T...>;

}  // namespace opfacade
