// Prepares Q of a consumer warpgroup in shared memory: applies the sign of the scale, and converts bf16 to f16 if K is f16.
#pragma once
#include "kernels/attention/prefill_sm90/math.cuh"
#include "kernels/attention/q_transform.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void transform_queries(unsigned char* rows, QTransform transform) {
  for (int panel = 0; panel < WgmmaShared<C>::kPanels; ++panel) {
    uint32_t* words = reinterpret_cast<uint32_t*>(rows + panel * WgmmaShared<C>::kQPanel);
#pragma unroll 1
    for (int i = threadIdx.x % kWarpgroup; i < 64 * 32; i += kWarpgroup)
      words[i] = transformed_pair<typename C::Q>(words[i], transform);
  }
}

// For an fp8 cache: multiplies bf16 rows (kNarrowQuery) by a power of two per row and converts them to f16, because the
// dequantised K is f16. `factors` receives the score factors, which restore the scores: the factor of K / that power. Two
// threads process each of the 64 rows.
template <class C>
__device__ __forceinline__ void scale_queries(const PrefillParams& p, unsigned char* rows, float* factors, int kv_head) {
  constexpr int kWords = C::kHeadDim / 4;  // words per thread
  const int row = threadIdx.x % kWarpgroup / 2, half = threadIdx.x % 2;
  const auto word_at = [&](int i) {
    const int word = half * kWords + i, chunk = word / 4;
    return reinterpret_cast<uint32_t*>(rows + chunk / 8 * WgmmaShared<C>::kQPanel + panel_address(row, chunk % 8)) + word % 4;
  };
  int shift = 0;
  if constexpr (C::kNarrowQuery) {
    float top = 0.f;
#pragma unroll 4
    for (int i = 0; i < kWords; ++i) top = fmaxf(top, largest_of(*word_at(i)));
    shift = f16_shift(fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1)));
#pragma unroll 4
    for (int i = 0; i < kWords; ++i) *word_at(i) = f16_pair(*word_at(i), power_of_two(shift));
  }
  const float key = p.k_scale == nullptr ? 1.f : p.k_scale[kv_head * p.kv_scale_stride];
  __syncwarp();  // this warp, the only reader of these rows, has read the factors of the previous work
  if (half == 0) factors[row] = never_zero(key * power_of_two(-shift));
}

// The score factor of a thread's row; 1 without an fp8 cache. The factor stays in shared memory, because registers are scarcer.
template <class C>
__device__ __forceinline__ float score_factor(const WgmmaShared<C>& smem, int half) {
  if constexpr (C::kKvBytes != 1) return 1.f;
  else return smem.raw.factor[wgmma_row(half)];
}
// The score factor that the softmax must apply; with a soft cap it has been applied already.
template <class C>
__device__ __forceinline__ float softmax_factor(const WgmmaShared<C>& smem, int half) {
  return C::kSoftCap ? 1.f : score_factor<C>(smem, half);
}

}  // namespace opfacade
