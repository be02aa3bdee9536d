// Tile math of the consumers: scores of 64 heads and 32 tokens over 576 columns, softmax weights, half the columns of the
// values.
// Fragment layout: kernels/tile/fragment.cuh.
#pragma once
#include "kernels/mla/shared.cuh"
#include "kernels/attention/lazy_softmax.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/wgmma_kept.cuh"

namespace opfacade {

using MlaQueries = uint32_t[kMlaKept * 16];  // the leading columns of two rows
using MlaScores = float[kMlaKeys / 2];
using MlaWeights = uint32_t[kMlaKeys / 4];
using MlaHalf = float[2][kMlaLatent / 8];  // 256 columns of o, as two wgmma accumulators

// The tokens of an item, in registers: values in shared memory are reloaded after each barrier.
struct MlaSpan {
  int begin, first_key, end;
  int first_row_end;  // used with several query rows: see MlaWork
};

__device__ __forceinline__ int mla_warp() { return threadIdx.x % kWarpgroup / 32; }
// This thread's first row; the second is row + 8.
__device__ __forceinline__ int mla_row() { return mla_warp() * 16 + lane_row(); }

static_assert(kMlaKeys == 32, "a tile of values is two steps");

// Loads this warp's query rows from their stage: four 8 x 8 matrices an ldmatrix.
__device__ __forceinline__ void read_queries(uint32_t stage, MlaQueries& q) {
  const LaneChunk at = down_first();
  const int row = mla_warp() * 16 % kMlaKeys + at.row;
#pragma unroll
  for (int panel = 0; panel < kMlaKept; ++panel)
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      uint32_t four[4];
      ldmatrix_x4(four, stage + panel * kMlaToQueryPanel + panel_address(row, step * 2 + at.chunk));
#pragma unroll
      for (int i = 0; i < 4; ++i) q[panel * 16 + step * 4 + i] = four[i];
    }
}
// Copies the remaining query columns to their own shared memory.
__device__ __forceinline__ void copy_queries(uint32_t stage, uint32_t to) {
  const int row = mla_warp() * 16 + threadIdx.x % 32 / 2;
#pragma unroll 1
  for (int panel = kMlaKept; panel < kMlaPanels; ++panel, to += kMlaPanelBytes)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int chunk = threadIdx.x % 2 * 4 + i;
      const uint32_t from = stage + panel * kMlaToQueryPanel + panel_address(row % kMlaKeys, chunk);
      store_shared_16(to + panel_address(row, chunk), load_shared_16(from));
    }
}

// Issues s = q * k^T. Panels with q in registers alternate with panels with q in shared memory: the former wait for each other,
// the latter for shared memory bandwidth.
template <class C>
__device__ __forceinline__ void issue_scores(const MlaQueries& q, uint32_t more_q, uint32_t k, MlaScores& s) {
  using T = typename C::T;
  Descriptor rows = row_descriptor(more_q), latent = row_descriptor(k, kMlaToGroup);
  const uint32_t of_rotated = row_descriptor(0).high;
  asm volatile("" : "+r"(rows.low), "+r"(latent.low));
  wgmma_fence();
#pragma unroll
  for (int order = 0; order < kMlaPanels; ++order) {
    const int panel = order % 2 == 0 ? order / 2 : kMlaKept + order / 2;
    const uint32_t at = panel < kMlaLatentPanels ? panel * kMlaToPanel : part_offset(kRopePart);
    const Descriptors keys({latent.low + (at >> 4), panel < kMlaLatentPanels ? latent.high : of_rotated}, 32);
    if (panel < kMlaKept) {
      WgmmaKept<T, kMlaKeys>::rs(s, q + panel * 16, keys, panel != 0);
    } else {
      const uint32_t below = (panel - kMlaKept) * kMlaPanelBytes;
      Wgmma<T, kMlaKeys>::ss(s, Descriptors({rows.low + (below >> 4), rows.high}, 32), keys, true);
    }
  }
  wgmma_commit();
}

// Issues o += weights * values.
template <class C>
__device__ __forceinline__ void issue_values(uint32_t weights, uint32_t v, MlaHalf& o) {
  asm volatile("" : "+r"(weights), "+r"(v));
  const Descriptors a = row_steps(weights);
  wgmma_fence();
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const Descriptors b = group_steps(v + side * 2 * kMlaToPanel, kMlaToGroup, kMlaToPanel);
    Wgmma<typename C::T, kMlaLatent / 4>::st_two(o[side], a, b);
  }
  wgmma_commit();
}

// Sets the latents of invisible tokens to zero, because 0 * NaN is NaN. Only tiles at an end of the item need it.
__device__ __forceinline__ void zero_invisible(const MlaSpan& item, int start, uint32_t stage) {
#pragma unroll 1
  for (int i = threadIdx.x % kWarpgroup; i < kMlaKeys * 64; i += kWarpgroup) {
    const int token = i / 64, panel = i % 64 / 8;
    const uint32_t at = panel * kMlaToPanel + token / 8 * kMlaToGroup + panel_address(token % 8, i % 8);
    if (start + token < item.first_key || start + token >= item.end) store_shared_16(stage + at, make_uint4(0, 0, 0, 0));
  }
}

__device__ __forceinline__ void transform_scores(QTransform transform, MlaScores& s) {
  const float sign = transform == QTransform::kNone ? 1.f : transform == QTransform::kNegate ? -1.f : 0.f;
#pragma unroll
  for (int i = 0; i < kMlaKeys / 2; ++i) s[i] *= sign;
}
__device__ __forceinline__ void mask_scores(const MlaSpan& item, int start, MlaScores& s) {
  const int column = start + lane_column();
  const int begin = max(item.first_key - column, 0), count = max(item.end - column - begin, 0);
#pragma unroll
  for (int i = 0; i < kMlaKeys / 2; ++i)
    if (static_cast<unsigned>(fragment_column(i) - begin) >= static_cast<unsigned>(count)) s[i] = minus_infinity();
}

// The keys [begin, end) of an item that one of its rows attends to, if query rows attend to different keys.
struct SeenKeys {
  int begin, end;
};
template <class C>
// recomputed, because no register is free for it
__device__ __forceinline__ int first_row_of_block() { return blockIdx.x % C::kHeadBlocks * kMlaRows; }
template <class C>
__device__ __forceinline__ SeenKeys seen_keys(const DecodeParams& p, const MlaSpan& item, int row) {
  const int end = item.first_row_end + (first_row_of_block<C>() + row) / (C::kGroup / C::kQueryRows);
  return {C::kWindow ? max(item.first_key, end + C::kQueryRows - 2 - p.window_left) : item.first_key,
          C::kCausal ? min(item.end, end) : item.end};
}
// The keys of an item that all of its rows attend to. A row past the last one attends to more.
template <class C>
__device__ __forceinline__ SeenKeys keys_seen_by_all(const DecodeParams& p, const MlaSpan& item) {
  const int last = min(kMlaRows - 1, C::kGroup - 1 - first_row_of_block<C>());
  return {seen_keys<C>(p, item, last).begin, seen_keys<C>(p, item, 0).end};
}

// A hidden key has weight 0, but 0 * NaN is NaN. For keys that only some rows attend to, the non-finite values are set to zero
// and the scores to NaN, so that a row is NaN if it attends to such a key. Every warp has read the tile before the change.
template <class C>
__device__ __forceinline__ void isolate_nonfinite(const SeenKeys& item, const SeenKeys& all, int start, uint32_t stage,
                                                  uint32_t* nonfinite, MlaScores& s) {
  using T = typename C::T;
  named_sync(kMlaScoring, kWarpgroup);
  uint32_t found = 0;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpgroup; i < kMlaKeys * 64; i += kWarpgroup) {
    const int token = i / 64, panel = i % 64 / 8, key = start + token;
    if (key < item.begin || key >= item.end || (key >= all.begin && key < all.end)) continue;
    const uint32_t at = stage + panel * kMlaToPanel + token / 8 * kMlaToGroup + panel_address(token % 8, i % 8);
    const uint4 c = load_shared_16(at);
    const uint32_t flags[4] = {nonfinite_halves<T>(c.x), nonfinite_halves<T>(c.y), nonfinite_halves<T>(c.z), nonfinite_halves<T>(c.w)};
    if ((flags[0] | flags[1] | flags[2] | flags[3]) == 0) continue;
    found |= 1u << token;
    store_shared_16(at, make_uint4(c.x & ~halves_mask(flags[0]), c.y & ~halves_mask(flags[1]), c.z & ~halves_mask(flags[2]),
                                   c.w & ~halves_mask(flags[3])));
  }
  found = __reduce_or_sync(0xffffffffu, found);
  if (threadIdx.x % 32 == 0) nonfinite[mla_warp()] = found;
  named_sync(kMlaScoring, kWarpgroup);
  found = nonfinite[0] | nonfinite[1] | nonfinite[2] | nonfinite[3];
#pragma unroll
  for (int i = 0; i < kMlaKeys / 2; ++i)
    if (found >> (lane_column() + fragment_column(i)) & 1) s[i] = __uint_as_float(0x7fc00000u);
}

// With several query rows, hides the keys to which a row does not attend.
template <class C>
__device__ __forceinline__ void mask_rows(const DecodeParams& p, const MlaSpan& item, int start, MlaScores& s) {
  const int column = start + lane_column();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const SeenKeys seen = seen_keys<C>(p, item, mla_row() + half * 8);
    const int begin = max(seen.begin - column, 0), count = max(seen.end - column - begin, 0);
#pragma unroll
    for (int i = half * 2; i < kMlaKeys / 2; i += i % 2 == 0 ? 1 : 3)
      if (static_cast<unsigned>(fragment_column(i) - begin) >= static_cast<unsigned>(count)) s[i] = minus_infinity();
  }
}

// Prepares raw scores for the softmax: the sign of the scale, the soft cap, and -inf for invisible keys. Rare work shares one
// branch, because each untaken branch costs as much as a barrier.
template <class C>
__device__ __forceinline__ void finish_scores(const DecodeParams& p, const MlaSpan& item, int start, uint32_t stage,
                                              uint32_t* nonfinite, MlaScores& s) {
  if constexpr (C::kSoftCap) {
    transform_scores(p.score.q_transform, s);
#pragma unroll
    for (int i = 0; i < kMlaKeys / 2; ++i) s[i] = soft_capped(s[i], p.score.cap_in);
  }
  const bool unseen = start < item.first_key || start + kMlaKeys > item.end;
  SeenKeys all{item.first_key, item.end};
  if constexpr (C::kQueryRows > 1) all = keys_seen_by_all<C>(p, item);
  const bool hidden = C::kQueryRows > 1 && (start < all.begin || start + kMlaKeys > all.end);
  if (rarely(unseen || hidden || !C::kSoftCap && p.score.q_transform != QTransform::kNone)) {
    if (!C::kSoftCap) transform_scores(p.score.q_transform, s);
    if constexpr (C::kQueryRows > 1) {
      if (hidden) isolate_nonfinite<C>({item.first_key, item.end}, all, start, stage, nonfinite, s);
      mask_rows<C>(p, item, start, s);
    } else {
      mask_scores(item, start, s);
    }
    if (unseen) zero_invisible(item, start, stage);
  }
}

// The address of this thread's row of four matrices in a weight panel. The XOR of address bits selects the matrix and the half
// of the panel.
__device__ __forceinline__ uint32_t weights_at(uint32_t panel) {
  const LaneChunk at = down_first();
  return panel + panel_address(mla_warp() * 16 + at.row, at.chunk);
}
__device__ __forceinline__ void store_weights(uint32_t at, int buffer, const MlaWeights& weights) {
#pragma unroll
  for (int i = 0; i < kMlaKeys / 4; i += 4) {
    const uint32_t four[4] = {weights[i], weights[i + 1], weights[i + 2], weights[i + 3]};
    stmatrix_x4(chunks_on(at, buffer * 4 + i / 2), four);
  }
}

}  // namespace opfacade
