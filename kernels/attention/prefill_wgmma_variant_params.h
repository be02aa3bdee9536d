// What a prefill for sm_90a with a variant or a mask of the call is told; shared by the kernel and its binding.
#pragma once
#include "kernels/attention/prefill_variant_params.h"
#include "kernels/attention/prefill_wgmma_params.h"

namespace opfacade {

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
