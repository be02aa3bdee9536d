// Matmul of 16-bit types by mma.sync, for operands that TMA cannot load. A copy to aligned lines would be a second launch, and
// tiles of wgmma need operands in the layout of TMA, so this kernel copies chunks as they are and shifts words as it reads them.
// Half of the warps copy, the others multiply. Those either have adjacent columns and all of k, or one segment of k each. Products
// are added in the order of wgmma tiles (chain.cuh), so their bits are equal.
#pragma once
#include "kernels/matmul/direct/lines.cuh"
#include "kernels/matmul/finish.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/mma_chain.cuh"

namespace opfacade {

// A config C. kRows, kColumns: tile size; with eight rows, the other half of operand A is zero. kWide: blocks of eight columns per
// warp. kBeside: warps with adjacent columns, which share stages. kAlong: warps with one segment of k each. kStages: stages of
// these warps. kSegments: a warp sums several segments of k. A team has as many warps that copy as warps that multiply.
template <class C>
struct DirectTeam {
  static_assert(C::kBeside == 1 || C::kAlong == 1, "warps lie side by side or along k");
  static constexpr int kBlocks = C::kRows < 16 ? 1 : C::kRows / 16, kThreads = 32 * C::kBeside, kAhead = C::kStages - 1;
  static constexpr int kX = C::kRows * kDirectPitch, kStage = kX + C::kColumns * kDirectPitch;
  static constexpr int kGroup = kBlocks == 1 ? 4 : kBlocks == 2 ? 2 : 1;  // k-steps whose operands are loaded together
  using Sums = float[kBlocks][C::kWide][4];

  DirectLines<C::kRows, kThreads> x;
  DirectLines<C::kColumns, kThreads> weight;
  uint32_t base;
  DirectReader of_x, of_weight;
  bool copies;  // whether this warp copies

  // thread: index of this thread in its team; the first half multiplies.
  __device__ __forceinline__ DirectTeam(const MatmulParams& p, const Tile& tile, uint32_t stages, int thread)
      : x(p.x, tile.batch, tile.row, tile.end, p.k, thread % kThreads), weight(p.weight, tile.weight, tile.column, p.columns, p.k, thread % kThreads), base(stages),
        of_x(thread % 32 / 4, x.over(thread % 32 / 4)), of_weight(column_of(thread % kThreads), weight.over(column_of(thread % kThreads))), copies(thread >= kThreads) {}
  static __device__ __forceinline__ int column_of(int thread) { return thread / 32 * 8 * C::kWide + thread % 32 / 4; }
  static __device__ __forceinline__ void sync() {
    if constexpr (C::kAlong > 1) named_sync(1 + threadIdx.x / (2 * kThreads), 2 * kThreads); else __syncthreads();
  }
  // Shared address of the stage after `stage`.
  __device__ __forceinline__ uint32_t after(uint32_t stage) const { return stage == base + kAhead * kStage ? base : stage + kStage; }

  // A thread that copies commits one group per stage, also after the last stage, so that waits can count groups.
  __device__ __forceinline__ void load(uint32_t stage, int from, int end) const {
    if (from < end) x.copy(stage, from), weight.copy(stage + kX, from);
    cp_async_commit();
  }
  // Adds the products of elements `begin` to before `end` in the order of k. length: elements per segment.
  __device__ __forceinline__ void sum(Sums& sums, int begin, int end, int length) const {
    Sums found = {};
    typename decltype(x)::Firsts x_first;
    typename decltype(weight)::Firsts weight_first;
    if (copies && begin == 0) x.load_first(x_first), weight.load_first(weight_first);
    sync();  // all threads have read the stages of the previous tile
    uint32_t filled = base, read = base;
#pragma unroll 1
    for (int from = begin - kAhead * kDirectStep; from < end; from += kDirectStep, filled = after(filled)) {
      if (copies && from == begin && begin == 0) x.store_first(base, x_first), weight.store_first(base + kX, weight_first);
      if (from >= begin) {
        if (copies) cp_async_wait<kAhead - 1>();
        sync();
      }
      if (copies) load(filled, from + kAhead * kDirectStep, end);
      if (copies || from < begin) continue;
      if (C::kSegments && from > begin && from % length == 0) add(sums, found, from == begin + length);
      const int steps = (min(end - from, kDirectStep) + 15) / 16;
      if (x.odd || weight.odd) multiply<true>(found, read, steps); else multiply<false>(found, read, steps);
      read = after(read);
    }
    add(sums, found, !C::kSegments || end - begin <= length);
  }

 private:
  // Adds the sums of one segment, which then begin again at zero.
  static __device__ __forceinline__ void add(Sums& sums, Sums& found, bool first) {
#pragma unroll
    for (int i = 0; i < kBlocks * C::kWide * 4; ++i) {
      float& sum = sums[i / 4 / C::kWide][i / 4 % C::kWide][i % 4];
      float& more = found[i / 4 / C::kWide][i / 4 % C::kWide][i % 4];
      sum = first ? more : sum + more;
      more = 0.f;
    }
  }
  // Multiplies k-steps of 16 elements.
  template <bool kOdd>
  __device__ __forceinline__ void multiply(Sums& found, uint32_t at, int steps) const {
#pragma unroll 1
    for (; steps >= kGroup; steps -= kGroup, at += 32 * kGroup) multiply_group<kOdd, kGroup>(found, at);
    if (kGroup == 1) return;
#pragma unroll 1
    for (; steps > 0; --steps, at += 32) multiply_group<kOdd, 1>(found, at);
  }
  // A thread has rows lane / 4 and lane / 4 + 8 of each block of rows, and column lane / 4 of each block of columns.
  template <bool kOdd, int kSteps>
  __device__ __forceinline__ void multiply_group(Sums& found, uint32_t at) const {
    uint2 a[kSteps][kBlocks][2], b[kSteps][C::kWide];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int j = 0; j < C::kWide; ++j) b[step][j] = of_weight.read<kOdd>(at + 32 * step + kX + j * 8 * kDirectPitch);
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) a[step][i / 2][i % 2] = 8 * i < C::kRows ? of_x.read<kOdd>(at + 32 * step + i * 8 * kDirectPitch) : make_uint2(0, 0);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const uint2 above = a[step][block][0], below = a[step][block][1];
        const uint32_t words[4] = {above.x, below.x, above.y, below.y};
#pragma unroll
        for (int j = 0; j < C::kWide; ++j) mma_chain<typename C::T>(found[block][j], words, b[step][j].x, b[step][j].y);
      }
  }
};

template <class C>
__device__ __forceinline__ void finish_direct(const MatmulParams& p, const Tile& tile, int warp, const typename DirectTeam<C>::Sums& sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int block = 0; block < DirectTeam<C>::kBlocks; ++block) {
    if (tile.row + 16 * block >= tile.end) break;
#pragma unroll
    for (int j = 0; j < C::kWide; ++j)
      finish_block<C>(p, tile, tile.row + 16 * block + lane / 4, tile.column + (warp * C::kWide + j) * 8 + lane % 4 * 2, sums[block][j]);
  }
}

// Adds the sums of all teams, which have one segment each, in the order of k. The first warp finishes the tile.
template <class C>
__device__ __forceinline__ void finish_segments(const MatmulParams& p, const Tile& tile, uint32_t base, int slots, typename DirectTeam<C>::Sums& sums) {
  static_assert(DirectTeam<C>::kBlocks == 1 && C::kWide == 1, "a thread has four sums");
  const int lane = threadIdx.x % 32, bytes = slots * DirectTeam<C>::kStage, many = (p.k + p.segment - 1) / p.segment;
  float(&own)[4] = sums[0][0];
  __syncwarp();  // all lanes have read the stages
  if (threadIdx.x % 64 < 32)
    store_shared_16(base + threadIdx.x / 64 * bytes + lane * 16, make_uint4(__float_as_uint(own[0]), __float_as_uint(own[1]), __float_as_uint(own[2]), __float_as_uint(own[3])));
  __syncthreads();
  if (threadIdx.x < 32) {
#pragma unroll 4
    for (int i = 1; i < many; ++i) {
      const uint4 more = load_shared_16(base + i * bytes + lane * 16);
      own[0] += __uint_as_float(more.x), own[1] += __uint_as_float(more.y), own[2] += __uint_as_float(more.z), own[3] += __uint_as_float(more.w);
    }
    finish_direct<C>(p, tile, 0, sums);
  }
  __syncthreads();  // the sums are in the stages of the next tile
}

template <class C>
__device__ __forceinline__ void direct_tiles(const MatmulParams& p) {
  using Team = DirectTeam<C>;
  wait_for_previous();
  const Tiles<C> tiles(p);
  const int count = tiles.count(p), warp = threadIdx.x / 32;
  const uint32_t base = smem_address(dynamic_shared());
#pragma unroll 1
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    Tile tile = tiles.at(index);
    tile.end = min(tile.end, tile.row + C::kRows);  // a thread with eight rows has no row eight below its own
    typename Team::Sums sums;
    if constexpr (C::kAlong > 1) {
      const int slots = direct_slots(C::kStages, p.segment), begin = warp / 2 * p.segment;
      Team(p, tile, base + warp / 2 * slots * Team::kStage, threadIdx.x % 64).sum(sums, begin, min(p.k, begin + p.segment), p.segment);
      finish_segments<C>(p, tile, base, slots, sums);
    } else {
      Team(p, tile, base, threadIdx.x).sum(sums, 0, p.k, p.segment);
      if (warp < C::kBeside) finish_direct<C>(p, tile, warp, sums);
    }
  }
}

}  // namespace opfacade
