// TMA descriptor of a tensor: 128 opaque bytes encoded by the driver (csrc/common/tensor_map.h). A kernel takes it inside its
// __grid_constant__ params.
#pragma once
#include <stdint.h>

namespace opfacade {

struct alignas(64) TensorMap {
  uint64_t words[16];
};

}  // namespace opfacade
