// Parameters of the probes, shared by the kernels and their binding.
#pragma once
#include "kernels/ptx/tensor_map.h"

namespace opfacade {

struct ProbeParams {
  TensorMap map;
  const void* a;
  const void* b;
  void* c;
  int32_t at[4];
};

}  // namespace opfacade
