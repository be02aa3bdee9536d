// Bounds of a front (kernels/sampling/front.cuh) in a small kernel of one CTA.
#include "tests/emulator/simt.h"
#include "kernels/sampling/front.cuh"

using namespace opfacade;

struct Params {
  uint32_t* out;
  const float* octaves;  // of the least and the most likely token of the sample, of a noted token, and of a token that follows it
  const float* keys;     // above the base; the first one is the key of the noted token
  int count;
};

// Writes the bits of the base and the lift, the bounds of the keys, and the largest words with which both tokens may be noted.
static void bounds(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  const Front front(*reinterpret_cast<FrontShared*>(dynamic_shared()));
  front.clear();
  __syncthreads();
  front.measure(threadIdx.x == 0 ? ordered(p.octaves[1]) : 0, threadIdx.x == 0 ? ~ordered(p.octaves[0]) : 0);
  __syncthreads();
  const FrontScale scale = front.place_steps(true);
  __syncthreads();
  const float any = -minus_infinity(), noted = p.octaves[2] - scale.base;
  if (threadIdx.x < 32) front.raise(scale, any);
  __syncthreads();
  if (threadIdx.x < 32) front.note(threadIdx.x == 0, scale, noted, p.keys[0], {1, 1, 0.f}, any);
  __syncthreads();
  if (threadIdx.x != 0) return;
  p.out[0] = __float_as_uint(scale.base), p.out[1] = __float_as_uint(scale.lift);
  for (int i = 0; i < 2; ++i) p.out[2 + i] = __float2uint_rz(exp2_approx(front.leeway(scale, p.octaves[2 + i] - scale.base)));
  for (int i = 0; i < p.count; ++i) p.out[4 + i] = scale.bound(p.keys[i]);
}

extern "C" bool run_bounds(uint32_t* out, const float* octaves, const float* keys, int count) {
  const Params params{out, octaves, keys, count};
  return simt::launch({1, 1, 1}, kSampleThreads, sizeof(FrontShared), 1, bounds, &params);
}
