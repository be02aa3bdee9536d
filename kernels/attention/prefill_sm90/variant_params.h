// Parameters of an sm_90a prefill with a variant or a mask; the kernel and its binding share them.
#pragma once
#include "kernels/attention/prefill/variant_params.h"
#include "kernels/attention/prefill_sm90/params.h"

namespace opfacade {

// With three consumer warpgroups the producer releases more registers to the consumers, for expressions and masks. Only the
// producer of ragged K and V can do so: the producer of a paged cache finds pages and boxes and would spill, while the
// consumers of a paged variant do not spill with the registers of WgmmaTile.
template <class Plain>
struct WgmmaVariedTile : Plain {
  static constexpr int kRegisters = Plain::kConsumerWarpgroups == 3 ? 152 : Plain::kRegisters;
  static constexpr int kProducerRegisters = Plain::kConsumerWarpgroups == 3 ? 56 : Plain::kProducerRegisters;
  static constexpr int kAdded = Plain::kConsumerWarpgroups * (kRegisters - Plain::kRegisters);
  static_assert(kAdded <= Plain::kProducerRegisters - kProducerRegisters, "more registers than the producer releases");
};

struct VariedWgmmaPrefillParams : WgmmaPrefillParams {
  VariantOperands variant;
};

// The enclosing parameters of `base`.
#ifdef __CUDACC__
__device__
#endif
inline const VariedWgmmaPrefillParams& varied_wgmma(const PrefillParams& base) {
  const char* derived = reinterpret_cast<const char*>(&base) - offsetof(WgmmaPrefillParams, base);
  return static_cast<const VariedWgmmaPrefillParams&>(*reinterpret_cast<const WgmmaPrefillParams*>(derived));
}

}  // namespace opfacade
