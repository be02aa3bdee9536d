// Shadows kernels/ptx/wgmma_steps.cuh: products with A in registers.
#pragma once
#include "kernels/ptx/wgmma.cuh"

namespace opfacade {

template <class T, int kColumns, bool kTransposed>
struct WgmmaOfRegisters {
  static void rs(float (&d)[kColumns / 2], const uint32_t* a, const Descriptors& b, bool accumulate) {
    simt::ask_product([&d, a, b, accumulate] { make(d, a, b, accumulate, kWgmmaSteps); });
  }
  static void rs_two(float (&d)[kColumns / 2], const uint32_t* a, const Descriptors& b) {
    simt::ask_product([&d, a, b] { make(d, a, b, true, 2); });
  }
  static void step(float (&d)[kColumns / 2], const uint32_t* a, const Descriptors& b, int step, bool accumulate) {
    simt::ask_product([&d, a, b, step, accumulate] { make(d, a, b, accumulate, step + 1, step); });
  }

 private:
  static void make(float (&d)[kColumns / 2], const uint32_t* a, const Descriptors& b, bool accumulate, int stop, int first = 0) {
    for (float& x : d) x = accumulate ? x : 0.f;
    for (int step = first; step < stop; ++step) {
      const auto all = simt::exchange(a + 4 * (step - first), 4);
      float rows[2][16];
      for (int half = 0; half < 2; ++half)
        for (int k = 0; k < 16; ++k) {
          const uint32_t pair = all[simt::lane() / 4 * 4 + k % 8 / 2][k / 8 * 2 + half];
          rows[half][k] = T::unpack(static_cast<uint16_t>(k % 2 ? pair >> 16 : pair));
        }
      Wgmma<T, kColumns>::add(d, rows, b.at[step], kTransposed);
    }
  }
};

}  // namespace opfacade
