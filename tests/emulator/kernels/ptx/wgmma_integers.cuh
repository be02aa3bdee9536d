// Shadows kernels/ptx/wgmma_integers.cuh.
#pragma once
#include "kernels/ptx/wgmma.cuh"

namespace opfacade {

template <int kColumns>
struct WgmmaIntegers {
  static void multiply(int32_t (&d)[kColumns / 2], const Descriptors& a, const Descriptors& b, bool accumulate) {
    simt::ask_product([&d, a, b, accumulate] {
      for (int32_t& x : d) x = accumulate ? x : 0;
      for (int step = 0; step < kWgmmaSteps; ++step)
        for (int i = 0; i < kColumns / 2; ++i) add(d[i], a.at[step], b.at[step], i);
    });
  }

 private:
  static void add(int32_t& sum, uint64_t a, uint64_t b, int i) {
    const int row = simt::current->thread % 128 / 32 * 16 + simt::lane() / 4 + i / 2 % 2 * 8;
    const int column = i / 4 * 8 + simt::lane() % 4 * 2 + i % 2;
    for (int k = 0; k < 32; ++k) sum += byte_at(row_of(a, row) + k) * byte_at(row_of(b, column) + k);
  }
  static uint32_t row_of(uint64_t operand, int n) { return field(operand, 0) + n / 8 * field(operand, 32) + n % 8 * 128; }
  static int32_t byte_at(uint32_t address) { return static_cast<int8_t>(*simt::at(swizzled_128(address))); }
};

}  // namespace opfacade
