// Parameters of an sm_90a prefill with a variant or a mask, shared by the kernel and its binding.
#pragma once
#include "kernels/attention/prefill/variant_params.h"
#include "kernels/attention/prefill_sm90/params.h"

namespace opfacade {

// Where three warpgroups compute, the one that loads ragged rows leaves them more registers: expressions and masks take some.
template <class Plain>
struct WgmmaVariedTile : Plain {
  static constexpr int kRegisters = Plain::kComputing == 3 ? 152 : Plain::kRegisters;
  static constexpr int kProducerRegisters = Plain::kComputing == 3 ? 56 : Plain::kProducerRegisters;
  static constexpr int kTaken = Plain::kComputing * (kRegisters - Plain::kRegisters);
  static_assert(kTaken <= Plain::kProducerRegisters - kProducerRegisters, "a block has no more than that");
};

struct VariedWgmmaPrefillParams : WgmmaPrefillParams {
  VariantOperands variant;
};

// The enclosing parameters of `base`.
#ifdef __CUDACC__
__device__
#endif
inline const VariedWgmmaPrefillParams& varied_wgmma(const PrefillParams& base) {
  const char* whole = reinterpret_cast<const char*>(&base) - offsetof(WgmmaPrefillParams, base);
  return static_cast<const VariedWgmmaPrefillParams&>(*reinterpret_cast<const WgmmaPrefillParams*>(whole));
}

}  // namespace opfacade
