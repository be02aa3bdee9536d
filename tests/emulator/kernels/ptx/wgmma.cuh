// Shadows kernels/ptx/wgmma.cuh: each thread computes the product of its own elements, at the issue or at the wait (simt.h).
#pragma once
#include "kernels/ptx/dtype.cuh"
#include "kernels/ptx/tma.cuh"

namespace opfacade {

struct Descriptor {
  uint32_t low, high;
};
inline Descriptor panel_descriptor(uint32_t address, uint32_t groups, uint32_t across) {
  return {(across >> 4) << 16 | (address & 0x3ffffu) >> 4, 1u << 30 | groups >> 4};
}

constexpr int kWgmmaSteps = 4;
struct Descriptors {
  uint64_t at[kWgmmaSteps];

  Descriptors(Descriptor first, uint32_t bytes) {
    for (int step = 0; step < kWgmmaSteps; ++step)
      at[step] = static_cast<uint64_t>(first.high) << 32 | (first.low + static_cast<uint32_t>(step) * (bytes >> 4));
  }
};

inline void wgmma_fence() {}
inline void wgmma_commit() { simt::close_products(); }
// The whole warp waits: afterwards, no lane reads operands for the product of another lane.
template <int kPending>
void wgmma_wait() {
  simt::await_products(kPending);
  __syncwarp();
}
template <int kPlace>
void wgmma_wait_all_at() {
  simt::await_products(0);
  __syncwarp();
}
template <class X, int kCount>
void pin(X (&)[kCount]) {}
template <int kCount>
void keep_alive(const uint32_t (&)[kCount]) {}

template <class T>
float shared_element(uint32_t address) {
  uint16_t bits;
  memcpy(&bits, simt::at(swizzled_128(address)), 2);
  return T::unpack(bits);
}
inline uint32_t field(uint64_t descriptor, int shift) { return static_cast<uint32_t>(descriptor >> shift & 0x3fff) << 4; }

template <class T, int kColumns>
struct Wgmma {
  static void add(float (&d)[kColumns / 2], const float (&a)[2][16], uint64_t b, bool transposed) {
    const uint32_t start = field(b, 0), across = field(b, 16), groups = field(b, 32);
    for (int i = 0; i < kColumns / 2; ++i) {
      const int n = i / 4 * 8 + simt::lane() % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) {
        const uint32_t at = transposed ? start + n / 64 * across + k / 8 * groups + k % 8 * 128 + n % 64 * 2
                                       : start + n / 8 * groups + n % 8 * 128 + k * 2;
        d[i] += a[i % 4 / 2][k] * shared_element<T>(at);
      }
    }
  }
  static void load(float (&rows)[2][16], uint64_t a) {
    const int first = simt::current->thread % 128 / 32 * 16 + simt::lane() / 4;
    for (int i = 0; i < 32; ++i) {
      const int row = first + i / 16 * 8;
      rows[i / 16][i % 16] = shared_element<T>(field(a, 0) + row / 8 * field(a, 32) + row % 8 * 128 + i % 16 * 2);
    }
  }
  static void ss(float (&d)[kColumns / 2], const Descriptors& a, const Descriptors& b, bool accumulate) {
    simt::ask_product([&d, a, b, accumulate] {
      for (float& x : d) x = accumulate ? x : 0.f;
      add_steps(d, a, b, false);
    });
  }
  static void st(float (&d)[kColumns / 2], const Descriptors& a, const Descriptors& b) {
    simt::ask_product([&d, a, b] { add_steps(d, a, b, true); });
  }
  static void st_two(float (&d)[kColumns / 2], const Descriptors& a, const Descriptors& b) {
    simt::ask_product([&d, a, b] { add_steps(d, a, b, true, 2); });
  }

 private:
  static void add_steps(float (&d)[kColumns / 2], const Descriptors& a, const Descriptors& b, bool transposed,
                        int steps = kWgmmaSteps) {
    for (int step = 0; step < steps; ++step) {
      float rows[2][16];
      load(rows, a.at[step]);
      add(d, rows, b.at[step], transposed);
    }
  }
};

}  // namespace opfacade
