#pragma once
#include <stdint.h>

namespace opfacade {

struct ScaleParams {
  const float* x;
  float* y;
  int64_t n;
  float factor;
};

}  // namespace opfacade
