// Shadows kernels/common/wgmma_steps.cuh.
#pragma once
#include "kernels/common/wgmma.cuh"

namespace opfacade {

constexpr int kWgmmaSteps = 4;

template <class T, int kColumns>
struct WgmmaSteps {
  using Operands = uint64_t[kWgmmaSteps];
  static void ss(float (&d)[kColumns / 2], const Operands& a, const Operands& b, bool accumulate) {
    for (int step = 0; step < kWgmmaSteps; ++step) Wgmma<T, kColumns>::ss(d, a[step], b[step], accumulate || step > 0);
  }
  static void st(float (&d)[kColumns / 2], const Operands& a, const Operands& b) {
    for (int step = 0; step < kWgmmaSteps; ++step) Wgmma<T, kColumns>::st(d, a[step], b[step]);
  }
};

}  // namespace opfacade
