// Shadows kernels/ptx/wgmma_kept_bytes.cuh.
#pragma once
#include "kernels/ptx/wgmma_bytes.cuh"
#include "kernels/ptx/wgmma_kept.cuh"

namespace opfacade {

template <int kColumns>
struct WgmmaKeptBytes {
  static void rs(float (&d)[kColumns / 2], const uint32_t* a, const Descriptors& b, int step, bool accumulate) {
    simt::ask_product([&d, a, b, step, accumulate] { make(d, a, b, step, accumulate); });
  }

 private:
  static void make(float (&d)[kColumns / 2], const uint32_t* a, const Descriptors& b, int step, bool accumulate) {
    for (float& x : d) x = accumulate ? x : 0.f;
    const auto all = simt::exchange(a, 4);
    float rows[2][32];
    for (int half = 0; half < 2; ++half)
      for (int k = 0; k < 32; ++k) {
        const uint32_t word = all[simt::lane() / 4 * 4 + k % 16 / 4][k / 16 * 2 + half];
        rows[half][k] = of_fp8<E4M3>(static_cast<uint8_t>(word >> k % 4 * 8));
      }
    Fp8Step<E4M3>::add_all<kColumns>(d, rows, b.at[step]);
  }
};

}  // namespace opfacade
