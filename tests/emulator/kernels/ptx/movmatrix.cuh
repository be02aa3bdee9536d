// Shadows kernels/ptx/movmatrix.cuh.
#pragma once

namespace opfacade {

inline uint32_t transposed_8x8(uint32_t pair) {
  const auto all = simt::exchange(&pair, 1);
  const int column = simt::lane() / 4;
  uint32_t r = 0;
  for (int i = 0; i < 2; ++i) {
    const int row = simt::lane() % 4 * 2 + i;
    r |= (all[row * 4 + column / 2][0] >> column % 2 * 16 & 0xffff) << i * 16;
  }
  return r;
}

}  // namespace opfacade
