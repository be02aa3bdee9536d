// Counts quotients whose fp8 or i8 result differs from that of a division instruction.
#include "tests/emulator/simt.h"
#include "kernels/ptx/fp8.cuh"
#include "kernels/common/quotient.cuh"

using namespace opfacade;

// Rounds to the nearest i8, with saturation.
static int whole(float x) { return x >= 127.f ? 127 : x <= -128.f ? -128 : static_cast<int>(rintf(x)); }

// On a GPU, all NaNs convert to the same byte, so their signs are ignored.
static bool same(float x, float y) {
  if (x != x || y != y) return x != x && y != y;
  return e4m3x2_of(x, x) == e4m3x2_of(y, y) && e5m2x2_of(x, x) == e5m2x2_of(y, y) && whole(x) == whole(y);
}

// Divides every x by each factor. With `exact`, the f32 quotients are compared too, because the byte may hide a wrong last bit.
template <bool kShort>
static long wrong(const float* xs, long x_count, const float* factors, long count, bool exact) {
  long found = 0;
  for (long k = 0; k < count; ++k) {
    const Divisor by(factors[k]);
    for (long i = 0; i < x_count; ++i) {
      float one[1] = {xs[i]};
      by.divide<kShort>(one);
      const float want = xs[i] / factors[k], single = by.of<kShort>(xs[i]);
      found += exact ? one[0] != want || single != want : !same(one[0], want) || !same(single, want);
    }
  }
  return found;
}

extern "C" long wrong_short(const float* xs, long n, const float* factors, long count, bool exact) {
  return wrong<true>(xs, n, factors, count, exact);
}
extern "C" long wrong_long(const float* xs, long n, const float* factors, long count, bool exact) {
  return wrong<false>(xs, n, factors, count, exact);
}
