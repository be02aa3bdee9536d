// Shadows kernels/ptx/wgmma_layouts.cuh.
#pragma once
#include "kernels/ptx/wgmma.cuh"

namespace opfacade {

template <class T, int kColumns, bool kA, bool kB>
struct WgmmaLayouts {
  static void multiply(float (&d)[kColumns / 2], const Descriptors& a, const Descriptors& b, bool accumulate) {
    simt::ask_product([&d, a, b, accumulate] {
      for (float& x : d) x = accumulate ? x : 0.f;
      for (int step = 0; step < kWgmmaSteps; ++step) {
        float rows[2][16];
        load(rows, a.at[step]);
        Wgmma<T, kColumns>::add(d, rows, b.at[step], kB);
      }
    });
  }

 private:
  static void load(float (&rows)[2][16], uint64_t a) {
    if (!kA) return Wgmma<T, kColumns>::load(rows, a);
    const int first = simt::current->thread % 128 / 32 * 16 + simt::lane() / 4;
    for (int i = 0; i < 32; ++i) {
      const int row = first + i / 16 * 8, k = i % 16;
      rows[i / 16][k] = shared_element<T>(field(a, 0) + k / 8 * field(a, 32) + k % 8 * 128 + row * 2);
    }
  }
};

}  // namespace opfacade
