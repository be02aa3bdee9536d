// The variant of a kernel, or NoVariant if it has none: see prefill/variant.cuh.
#pragma once

namespace opfacade {

struct NoVariant {
  static constexpr bool kLogits = false, kLine = false, kMask = false, kQuery = false, kPacked = false;
  static constexpr int kHead = 0, kRow = 0, kKey = 0;
};

template <class C, class = void>
struct VariantOf {
  using Type = NoVariant;
};
template <class C>
struct VariantOf<C, decltype(static_cast<void>(C::Variant::kLogits))> {
  using Type = typename C::Variant;
};
template <class C>
using Variant = typename VariantOf<C>::Type;

template <class C>
constexpr bool kHidesMore = Variant<C>::kMask || Variant<C>::kPacked;

}  // namespace opfacade
