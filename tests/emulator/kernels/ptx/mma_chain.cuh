// Shadows kernels/ptx/mma_chain.cuh: products are added one by one to the previous sum, like those of wgmma in the emulator.
#pragma once
#include "kernels/ptx/mma.cuh"

namespace opfacade {

template <class T>
void mma_chain(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto all = simt::exchange(words, 6);
  for (int i = 0; i < 4; ++i) {
    const int row = simt::lane() / 4 + i / 2 * 8, column = simt::lane() % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const uint32_t x = all[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], y = all[column * 4 + k % 8 / 2][4 + k / 8];
      d[i] += element_of<T>(x, k % 2) * element_of<T>(y, k % 2);
    }
  }
}

}  // namespace opfacade
