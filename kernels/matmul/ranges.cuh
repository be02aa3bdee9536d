// Matmuls that each sum over one range of k, one per group. Operands contain the elements of k of all groups, and out has a
// matrix per group. A range may begin and end anywhere. TMA loads the steps that are entirely inside a range. Threads copy its
// last step if that is partial, with zeros after the range in both operands: elements of another group may be NaN, so a zero in
// one operand is not enough. Along a contiguous axis TMA can only begin at a multiple of 16 bytes. If k is contiguous in an
// operand, threads therefore copy ranges that begin elsewhere.
#pragma once
#include "kernels/matmul/groups.cuh"
#include "kernels/matmul/load.cuh"
#include "kernels/ptx/warpgroup.cuh"

namespace opfacade {

// The tiles of a batch of equal products: each group has all rows and columns.
template <class C>
struct RangeTiles : Tiles<C> {
  const MatmulParams& p;
  GroupRows range{0, 0};  // elements of k of the group that `steps` belongs to

  __device__ __forceinline__ explicit RangeTiles(const MatmulParams& params) : Tiles<C>(params), p(params) {}
  // These tiles with the steps of the group of tile `index`. An empty group has one step of zeros.
  __device__ __forceinline__ RangeTiles of(int index) const {
    constexpr int kStep = C::kPanels * kPanel<C>;
    RangeTiles own = *this;
    own.range = part_of_group(p, index / (this->down * this->across), p.k);
    own.steps = max(1, (own.range.stop - own.range.first + kStep - 1) / kStep);
    return own;
  }
};

// Copies one step of a range. Called by a warpgroup. Only one thread waits for the stage: the others may be several phases
// behind, where its parity is ambiguous.
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

// Loads the steps of one tile if both operands have tensor maps.
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

// The operand without its first k elements.
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
    const CopiedWeight<C> weight(of_weight, 0, tile.column, p.columns, size);
    CopiedFactors<C> factors(p, tile, 0);
    copy_steps<C>(smem, ring, x, weight, factors, 0, own.steps);
  }
}

}  // namespace opfacade
