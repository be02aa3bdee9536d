// Shadows kernels/ptx/wgmma_bytes.cuh: each addend of a step, including the accumulator, is truncated to 13 bits below the
// exponent of the largest addend, and so is the sum of the addends.
#pragma once
#include "kernels/ptx/fp8.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace opfacade {

template <class T>
struct ValuesOfFp8 {
  float of[256];
  ValuesOfFp8() {
    for (int i = 0; i < 256; ++i) of[i] = f32_of_f16(static_cast<uint16_t>(T::widen(static_cast<uint8_t>(i)).x));
  }
};
template <class T>
float of_fp8(uint8_t x) {
  static const ValuesOfFp8<T> values;
  return values.of[x];
}

// Truncates x to a multiple of 2^-13 times the power of two below `largest`.
inline float cut(float x, float largest) {
  const float unit = simt::from_bits<float>(simt::bits(largest) & 0x7f800000u) * 0x1p-13f;
  return unit == 0.f || !(largest < INFINITY) ? x : std::trunc(x / unit) * unit;
}

template <class T>
struct Fp8Step {
  static void add(float& d, const float (&a)[32], const float (&b)[32]) {
    float products[32], largest = std::fabs(d), sum = 0.f;
    for (int k = 0; k < 32; ++k) {
      products[k] = a[k] * b[k];
      if (!(std::fabs(products[k]) <= largest)) largest = std::fabs(products[k]);
    }
    for (float product : products) sum += cut(product, largest);
    sum += cut(d, largest);
    d = cut(sum, std::fabs(sum));
  }
  // d += a * b^T: `b` has a row of 32 bytes for each column.
  template <int kColumns>
  static void add_all(float (&d)[kColumns / 2], const float (&a)[2][32], uint64_t b) {
    for (int column = 0; column < kColumns / 4; ++column) {
      const int n = column / 2 * 8 + simt::lane() % 4 * 2 + column % 2;
      float row[32];
      load(row, b, n);
      for (int half = 0; half < 2; ++half) add(d[column / 2 * 4 + half * 2 + column % 2], a[half], row);
    }
  }
  static void load(float (&row)[32], uint64_t operand, int n) {
    const uint32_t start = field(operand, 0) + n / 8 * field(operand, 32) + n % 8 * 128;
    for (int k = 0; k < 32; ++k) row[k] = of_fp8<T>(*simt::at(swizzled_128(start + k)));
  }
};

template <class T, int kColumns>
struct WgmmaOfFp8 {
  static void ss(float (&d)[kColumns / 2], const Descriptors& a, const Descriptors& b, bool accumulate) {
    simt::ask_product([&d, a, b, accumulate] { make(d, a, b, 0, kWgmmaSteps, accumulate); });
  }

 protected:
  static void make(float (&d)[kColumns / 2], const Descriptors& a, const Descriptors& b, int from, int to, bool accumulate) {
    const int first = simt::current->thread % 128 / 32 * 16 + simt::lane() / 4;
    for (float& x : d) x = accumulate ? x : 0.f;
    for (int step = from; step < to; ++step) {
      float rows[2][32];
      for (int half = 0; half < 2; ++half) Fp8Step<T>::load(rows[half], a.at[step], first + half * 8);
      Fp8Step<T>::template add_all<kColumns>(d, rows, b.at[step]);
    }
  }
};
template <int kColumns>
struct Wgmma<E4M3, kColumns> : WgmmaOfFp8<E4M3, kColumns> {};
template <int kColumns>
struct Wgmma<E5M2, kColumns> : WgmmaOfFp8<E5M2, kColumns> {};

template <class T, int kColumns>
struct WgmmaOneStep : private WgmmaOfFp8<T, kColumns> {
  static void ss(float (&d)[kColumns / 2], const Descriptors& a, const Descriptors& b, int step, bool accumulate) {
    simt::ask_product([&d, a, b, step, accumulate] { WgmmaOneStep::make(d, a, b, step, step + 1, accumulate); });
  }
};

}  // namespace opfacade
