// What a prefill for sm_90a with a variant or a mask of the call is told; shared by the kernel and its binding.
#pragma once
#include "kernels/attention/prefill/variant_params.h"
#include "kernels/attention/prefill_sm90/params.h"

namespace opfacade {

// Where three warpgroups compute, the one that loads ragged rows leaves them more registers: expressions and masks take some.
template <class Plain>
struct WgmmaVariedTile : Plain {
  static constexpr int kRegisters = Plain::kComputing == 3 ? 152 : Plain::kRegisters;
  static constexpr int kLoaderRegisters = Plain::kComputing == 3 ? 56 : Plain::kLoaderRegisters;
  static constexpr int kTaken = Plain::kComputing * (kRegisters - Plain::kRegisters);
  static_assert(kTaken <= Plain::kLoaderRegisters - kLoaderRegisters, "a block has no more than that");
};

struct VariedWgmmaPrefillParams : WgmmaPrefillParams {
  VariantOperands variant;
};

// The whole of which `base` is a part.
#ifdef __CUDACC__
__device__
#endif
inline const VariedWgmmaPrefillParams& varied_wgmma(const PrefillParams& base) {
  const char* whole = reinterpret_cast<const char*>(&base) - offsetof(WgmmaPrefillParams, base);
  return static_cast<const VariedWgmmaPrefillParams&>(*reinterpret_cast<const WgmmaPrefillParams*>(whole));
}

}  // namespace opfacade
