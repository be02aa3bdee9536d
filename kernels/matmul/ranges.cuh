// Products whose sums are those of a range of k, one for each group: operands have the elements of k of all groups, and out has a
// matrix for each. A range begins and ends anywhere. TMA loads the steps that lie inside of one; threads copy its last step where that
// is not whole, with zeros behind the range: elements of another group may be NaN, so a zero in one operand is not enough. Along the
// contiguous axis TMA begins with a multiple of 16 bytes, else it ends the kernel: threads copy other ranges of operands that have
// k there.
#pragma once
#include "kernels/matmul/groups.cuh"
#include "kernels/matmul/load.cuh"
#include "kernels/ptx/warpgroup.cuh"

namespace opfacade {

// The tiles of a batch of products with one size: each group has all rows and columns.
template <class C>
struct RangeTiles : Tiles<C> {
  const MatmulParams& p;
  GroupRows range{0, 0};  // elements of k of the group whose steps this has

  __device__ __forceinline__ explicit RangeTiles(const MatmulParams& params) : Tiles<C>(params), p(params) {}
  // With the steps of the group of one tile. An empty group has one step of zeros.
  __device__ __forceinline__ RangeTiles of(int index) const {
    constexpr int kStep = C::kPanels * kPanel<C>;
    RangeTiles own = *this;
    own.range = part_of_group(p, index / (this->down * this->across), p.k);
    own.steps = max(1, (own.range.stop - own.range.first + kStep - 1) / kStep);
    return own;
  }
};

// Copies a step of a range, by a warpgroup. One thread waits for the stage: others may be phases behind it.
template <class C>
__device__ __forceinline__ void copy_step(const MatmulParams& p, const MatmulShared<C>& smem, const Ring<C::kStages>& ring, const Tile& tile, int k, int stop) {
  constexpr int kBarrier = 1;
  const bool leads = threadIdx.x % kWarpgroup == 0;
  if (leads) ring.wait_empty(smem.empty(ring.stage));
  named_sync(kBarrier, kWarpgroup);
  copy_panels<C, C::kRows, C::kXAcross>(smem.x(ring.stage), p.x, 0, tile.row, p.rows, k, stop);
  copy_panels<C, C::kColumns, C::kWeightAcross>(smem.weight(ring.stage), p.weight, 0, tile.column, p.columns, k, stop);
  fence_async_shared();
  named_sync(kBarrier, kWarpgroup);
  if (leads) mbarrier_arrive(smem.full(ring.stage));
}

// The steps of one tile where TMA loads both operands.
template <class C>
__device__ __forceinline__ void load_range(const MatmulParams& p, const MatmulShared<C>& smem, Ring<C::kStages>& ring, const Tile& tile, const RangeTiles<C>& own) {
  constexpr int kStep = C::kPanels * kPanel<C>;
  const Tile flat = {0, tile.row, tile.column, tile.end, 0};
  const bool whole = C::kXAcross && C::kWeightAcross || own.range.first % (16 / C::kSize) == 0;
  int k = own.range.first;
#pragma unroll 1
  for (; whole && k + kStep <= own.range.stop; k += kStep, ring.advance()) {
    if (threadIdx.x % kWarpgroup != 0) continue;
    ring.wait_empty(smem.empty(ring.stage));
    load_step<C>(p, smem, ring.stage, flat, k);
  }
  if (k == own.range.stop && k > own.range.first) return;
#pragma unroll 1
  do {
    copy_step<C>(p, smem, ring, tile, k, own.range.stop);
    ring.advance(), k += kStep;
  } while (k < own.range.stop);
}

// An operand from element k on.
template <class C>
__device__ __forceinline__ MatmulOperand behind(const MatmulOperand& of, int k) {
  return {static_cast<const typename UnsignedOf<C::kSize>::Type*>(of.data) + k * of.k, of.row, of.k, of.batch};
}

// By a warpgroup.
template <class C>
__device__ __forceinline__ void load_ranges(const MatmulParams& p, const MatmulShared<C>& smem, const RangeTiles<C>& tiles) {
  Ring<C::kStages> ring;
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    const RangeTiles<C> own = tiles.of(index);
    if (p.mapped != 0) {
      load_range<C>(p, smem, ring, tile, own);
      continue;
    }
    const MatmulOperand of_x = behind<C>(p.x, own.range.first), of_weight = behind<C>(p.weight, own.range.first);
    const int size = own.range.stop - own.range.first;
    const CopiedTile<C, C::kRows, C::kXAcross> x(of_x, 0, tile.row, tile.end, size);
    const CopiedTile<C, C::kColumns, C::kWeightAcross> weight(of_weight, 0, tile.column, p.columns, size);
    CopiedFactors<C> factors(p, tile, 0);
    copy_steps<C>(smem, ring, x, weight, factors, 0, own.steps);
  }
}

}  // namespace opfacade
