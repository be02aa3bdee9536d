// Attention of many query rows on sm_80 and later, with mma.sync and one buffer each for K and V. The kernel loads K of the
// next tile while it multiplies the weights of this tile by V, and V while it computes the scores. Two CTAs share an SM, so
// that one computes while the other waits; double buffers would leave no space for the second CTA. The query heads of one kv
// head are packed into rows, so tiles are full for any group size. prefill/schedule.cuh derives the schedule on the device.
#pragma once
#include "kernels/attention/prefill/nonfinite.cuh"
#include "kernels/attention/prefill/output.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void attend(const PrefillParams& p, PrefillSmem<C>& smem, RowState<C>& state) {
  const RowTile& tile = smem.tile;
  const KvRange& range = smem.range;
  const KvLoader<C> loader{p, smem, {p.table, tile.request}, range.end};
  loader.resolve(range.begin, loader.page(range.begin), 0);
  load_q<C>(p, smem, tile);
  __syncthreads();
  loader.load(0, range.begin, 0);
  if (Variant<C>::kQuery || C::kKvBytes == 1 || p.score.q_transform != QTransform::kNone) {
    cp_async_wait<0>();
    __syncthreads();
    if constexpr (Variant<C>::kQuery) vary_q<C>(p, smem);
    prepare_q<C>(p, smem);
  }
  int parity = 0;
#pragma unroll 1
  for (int start = range.begin; start < range.end; start += C::kTileKv, parity ^= 1) {
    const int next = start + C::kTileKv;
    cp_async_wait<0>();
    loader.land(0);
    __syncthreads();  // K has arrived; V's buffer is free
    loader.load(1, start, parity);
    Shown<C> shown;
    if constexpr (kHidesMore<C>) find_shown<C>(p, tile, range, key_table(smem, parity), start, shown);
    const int next_page = loader.page(next);
    Scores<C> s;
    compute_scores<C>(smem, s);
    if constexpr (C::kSoftCap) soft_cap<C>(smem, s, p.score.cap_in);
    if constexpr (Variant<C>::kLogits) vary_scores<C>(p, tile, key_table(smem, parity), start, s);
    const bool masked = kHidesMore<C> || needs_mask<C>(p, tile, range, start);
    if constexpr (kHidesMore<C>) {
      hide_scores<C>(shown, s);
    } else {
      if (masked) mask_scores<C>(p, tile, range, start, s);
    }
    update_softmax<C>(smem, state, s, p.score.log2_scale);
    loader.resolve(next, next_page, parity ^ 1);
    cp_async_wait<0>();
    loader.land(1);
    __syncthreads();  // V has arrived; K's buffer is free
    if (next < range.end) loader.load(0, next, parity ^ 1);
    if constexpr (C::kCausal || C::kWindow || kHidesMore<C>)
      if (masked) isolate_nonfinite_values<C>(p, tile, range, start, shown, smem, state);
    add_values<C>(smem, s, state);
  }
}

template <class C>
__device__ __forceinline__ void prefill(const PrefillParams& p) {
  if constexpr (C::kSplit != SplitMode::kOff) allow_dependents();
  PrefillSmem<C>& smem = *reinterpret_cast<PrefillSmem<C>*>(dynamic_shared());
  RowTile tile;
  if (!find_row_tile<C>(p, tile)) return;
  if (threadIdx.x == 0) {
    smem.tile = tile;
    smem.range = split_range<C>(p, visible_range<C>(p, tile));
  }
  __syncthreads();
  RowState<C> state;
  if (smem.range.begin < smem.range.end) attend<C>(p, smem, state);
  normalise<C>(p, smem, state);
  if constexpr (C::kSplit == SplitMode::kOff) {
    if constexpr (C::kReturnLse) write_lse<C>(p, smem, state, p.lse);
    write_rows<C>(p, smem.tile, smem, state);
  } else {
    write_partials<C>(p, smem, state);
  }
}

}  // namespace opfacade
