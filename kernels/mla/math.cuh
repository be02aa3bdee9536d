// What a computing warpgroup does with a tile: scores of 64 heads and 64 tokens over all 576 columns, weights, and its half
// of the values. Layout of fragments: kernels/common/wgmma.cuh.
#pragma once
#include "kernels/mla/shared.cuh"
#include "kernels/common/lazy_softmax.cuh"
#include "kernels/common/wgmma.cuh"

namespace opfacade {

using MlaScores = float[kMlaKeys / 2];
using MlaHalf = float[kMlaLatent / 4];  // 256 columns of o

// The tokens of an item, in registers: what lies in shared memory is read anew behind each barrier.
struct MlaSpan {
  int begin, first_key, end;
};

// This thread's first row; the second is eight on.
__device__ __forceinline__ int mla_row() { return threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4; }

static_assert(kMlaKeys == 16 * kWgmmaSteps, "a tile of values is so many steps");

// The products of one panel of keys and of the queries, a group of its own.
template <class C>
__device__ __forceinline__ void issue_scores(Descriptor q, Descriptor k, bool first, MlaScores& s) {
  const Descriptors at_q(q, 32), at_k(k, 32);
  wgmma_fence();
  Wgmma<typename C::T, kMlaKeys>::ss(s, at_q, at_k, !first);
  wgmma_commit();
}

// o += weights * values: the weights lie as one panel, the values are half a tile's latent.
template <class C>
__device__ __forceinline__ void issue_values(uint32_t weights, uint32_t v, int to_group, int to_panel, MlaHalf& o) {
  asm volatile("" : "+r"(weights), "+r"(v));
  const Descriptors a(panel_descriptor(weights, 1024, 0), 32), b(panel_descriptor(v, to_group, to_panel), 2 * to_group);
  wgmma_fence();
  Wgmma<typename C::T, kMlaLatent / 2>::st(o, a, b);
  wgmma_commit();
}

// Raw scores as the softmax wants them: of a positive scale, capped, -inf where a key is not visible.
template <class C>
__device__ __forceinline__ void finish_scores(const DecodeParams& p, const MlaSpan& item, int start, MlaScores& s) {
  if (p.score.q_transform != QTransform::kNone) {
    const float sign = p.score.q_transform == QTransform::kNegate ? -1.f : 0.f;
#pragma unroll
    for (int i = 0; i < kMlaKeys / 2; ++i) s[i] *= sign;
  }
  if constexpr (C::kSoftCap) {
#pragma unroll
    for (int i = 0; i < kMlaKeys / 2; ++i) s[i] = soft_capped(s[i], p.score.cap_in);
  }
  if (start >= item.first_key && start + kMlaKeys <= item.end) return;
  const int column = start + threadIdx.x % 4 * 2;
  const int begin = max(item.first_key - column, 0), count = max(item.end - column - begin, 0);
#pragma unroll
  for (int i = 0; i < kMlaKeys / 2; ++i)
    if (static_cast<unsigned>(i / 4 * 8 + i % 2 - begin) >= static_cast<unsigned>(count)) s[i] = minus_infinity();
}

template <class C>
__device__ __forceinline__ void store_weights(unsigned char* panel, const uint32_t (&weights)[kMlaKeys / 4]) {
#pragma unroll
  for (int i = 0; i < kMlaKeys / 4; ++i)
    *reinterpret_cast<uint32_t*>(panel + panel_address(mla_row() + i % 2 * 8, i / 2) + threadIdx.x % 4 * 4) = weights[i];
}

// Latents of tokens that are not visible become zeros, because 0 * NaN is NaN. Only of tiles at an end of the item.
__device__ __forceinline__ void sweep_unseen(const MlaSpan& item, int start, uint32_t left, int to_group, int to_panel) {
  if (start >= item.first_key && start + kMlaKeys <= item.end) return;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpgroup; i < kMlaKeys * 64; i += kWarpgroup) {
    const int token = i / 64, panel = i % 64 / 8;
    const uint32_t at = piece_at(panel / 4) + panel % 4 * to_panel + token / 8 * to_group + panel_address(token % 8, i % 8);
    if (start + token < item.first_key || start + token >= item.end) store_shared_16(left + at, make_uint4(0, 0, 0, 0));
  }
}

// The base of a row as the other warpgroup has moved it. factor: as that of follow.
__device__ __forceinline__ bool adopt(RowScale& scale, const float* base, float log2_scale, float (&factor)[2]) {
  bool moved = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float old = scale.base[half], now = base[mla_row() + half * 8];
    scale.base[half] = now;
    factor[half] = now == old ? 1.f : exp2_approx((old - now) * log2_scale);
    scale.sum[half] *= factor[half];
    moved |= now != old;
  }
  return moved;
}

}  // namespace opfacade
