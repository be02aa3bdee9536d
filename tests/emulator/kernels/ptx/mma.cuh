// Shadows kernels/ptx/mma.cuh.
#pragma once
#include "kernels/ptx/dtype.cuh"

namespace opfacade {

inline const unsigned char* matrix_row(const uint32_t (*all)[simt::kLaneWords], int matrix, int row) {
  return simt::at(all[matrix * 8 + row][0]);
}

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  const auto all = simt::exchange(&address, 1);
  for (int m = 0; m < 4; ++m) memcpy(&r[m], matrix_row(all, m, simt::lane() / 4) + simt::lane() % 4 * 4, 4);
}

inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  const auto all = simt::exchange(&address, 1);
  for (int m = 0; m < 4; ++m) {
    uint16_t two[2];
    for (int i = 0; i < 2; ++i) memcpy(&two[i], matrix_row(all, m, simt::lane() % 4 * 2 + i) + simt::lane() / 4 * 2, 2);
    r[m] = two[0] | static_cast<uint32_t>(two[1]) << 16;
  }
}

inline void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]) {
  const auto all = simt::exchange(&address, 1);
  for (int m = 0; m < 4; ++m)
    memcpy(simt::at(all[m * 8 + simt::lane() / 4][0]) + simt::lane() % 4 * 4, &r[m], 4);
}

template <class T>
float element_of(uint32_t pair, int which) {
  return T::unpack(static_cast<uint16_t>(which ? pair >> 16 : pair));
}

template <class T>
void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto all = simt::exchange(words, 6);
  for (int i = 0; i < 4; ++i) {
    const int row = simt::lane() / 4 + i / 2 * 8, column = simt::lane() % 4 * 2 + i % 2;
    float sum = 0.f;
    for (int k = 0; k < 16; ++k) {
      const uint32_t x = all[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], y = all[column * 4 + k % 8 / 2][4 + k / 8];
      sum += element_of<T>(x, k % 2) * element_of<T>(y, k % 2);
    }
    d[i] += sum;
  }
}

}  // namespace opfacade
