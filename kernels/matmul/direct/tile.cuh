// Matmul of 16-bit types by mma.sync, for small problems and for operands that TMA cannot load. It has no tensor map, barrier in
// shared memory, producer or cluster, and its code is short: a launch with cold caches waits for each part of these. Either warps
// side by side share the rows of a tile and sum all of k, or each warp sums one segment of k. Products are added in the order of
// wgmma tiles (chain.cuh), so their bits are equal.
#pragma once
#include "kernels/matmul/direct/lines.cuh"
#include "kernels/matmul/finish.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/mma_chain.cuh"

namespace opfacade {

// A config C. kRows, kColumns: tile size. kWide: blocks of eight columns per warp. kBeside: warps with adjacent columns, which
// share stages. kAlong: warps with one segment of k each. kStages: stages of these warps. kSegments: k has several segments.
template <class C>
struct DirectTeam {
  static_assert(C::kBeside == 1 || C::kAlong == 1, "warps lie side by side or along k");
  static constexpr int kBlocks = C::kRows / 16, kThreads = 32 * C::kBeside;
  static constexpr int kX = C::kRows * kDirectPitch, kStage = kX + C::kColumns * kDirectPitch;
  using Sums = float[kBlocks][C::kWide][4];
  using X = DirectLines<C::kRows, kThreads>;
  using Weight = DirectLines<C::kColumns, kThreads>;

  const X& x;
  const Weight& weight;
  uint32_t base;
  int thread;  // index of this thread in its team

  static __device__ __forceinline__ void sync() {
    if constexpr (C::kBeside == 1) __syncwarp(); else __syncthreads();
  }
  __device__ __forceinline__ uint32_t stage(int index) const { return base + index % C::kStages * kStage; }

  // Each thread commits one group of copies per stage, also after the last stage, so that waits can count groups.
  __device__ __forceinline__ void load(int index, int from, int end) const {
    if (from < end) x.copy(stage(index), from, thread), weight.copy(stage(index) + kX, from, thread);
    cp_async_commit();
  }
  // Adds the products of elements `begin` to before `end` in the order of k. length: elements per segment.
  __device__ __forceinline__ void sum(Sums& sums, int begin, int end, int length) const {
    Sums found = {};
    sync();  // all threads have read the stages of the previous tile
    for (int i = 0; i < C::kStages - 1; ++i) load(i, begin + i * kDirectStep, end);
    if (begin == 0 && end > 0) x.copy_first(base, thread), weight.copy_first(base + kX, thread);
#pragma unroll 1
    for (int i = 0, from = begin; from < end; ++i, from += kDirectStep) {
      cp_async_wait<C::kStages - 2>();
      sync();
      load(i + C::kStages - 1, from + (C::kStages - 1) * kDirectStep, end);
      if (C::kSegments && from > begin && from % length == 0) add(sums, found, from == begin + length, true);
      multiply(found, stage(i), (min(end - from, kDirectStep) + 15) / 16);
    }
    add(sums, found, !C::kSegments || end - begin <= length, false);
  }

 private:
  static __device__ __forceinline__ void add(Sums& sums, Sums& found, bool first, bool again) {
#pragma unroll
    for (int i = 0; i < kBlocks * C::kWide * 4; ++i) {
      float& sum = (&sums[0][0][0])[i];
      float& more = (&found[0][0][0])[i];
      sum = first ? more : sum + more;
      if (again) more = 0.f;
    }
  }
  // Multiplies k-steps of 16 elements. A thread has rows lane / 4 and lane / 4 + 8 of each block of 16 rows and column lane / 4
  // of each block of columns; all of these begin alike.
  __device__ __forceinline__ void multiply(Sums& found, uint32_t at, int steps) const {
    const int lane = thread % 32, line = lane / 4, column = thread / 32 * 8 * C::kWide + line;
    const uint32_t selector_x = x.begins_odd(line) ? 0x5432u : 0x3210u, selector = weight.begins_odd(column) ? 0x5432u : 0x3210u;
    uint32_t of_x = at + line * kDirectPitch + lane % 4 * 8, of_weight = at + kX + column * kDirectPitch + lane % 4 * 8;
    int step = 0;
#pragma unroll 1
    for (; step + 4 <= steps; step += 4)
#pragma unroll
      for (int i = 0; i < 4; ++i, of_x += 32, of_weight += 32) multiply_step(found, of_x, of_weight, selector_x, selector);
#pragma unroll 1
    for (; step < steps; ++step, of_x += 32, of_weight += 32) multiply_step(found, of_x, of_weight, selector_x, selector);
  }
  __device__ __forceinline__ void multiply_step(Sums& found, uint32_t of_x, uint32_t of_weight, uint32_t selector_x, uint32_t selector) const {
    uint2 b[C::kWide];
#pragma unroll
    for (int j = 0; j < C::kWide; ++j) b[j] = direct_four(of_weight + j * 8 * kDirectPitch, weight.odd, selector);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint2 above = direct_four(of_x + block * 16 * kDirectPitch, x.odd, selector_x);
      const uint2 below = direct_four(of_x + (block * 16 + 8) * kDirectPitch, x.odd, selector_x);
      const uint32_t a[4] = {above.x, below.x, above.y, below.y};
#pragma unroll
      for (int j = 0; j < C::kWide; ++j) mma_chain_fours<typename C::T>(found[block][j], a, b[j].x, b[j].y);
    }
  }
};

template <class C>
__device__ __forceinline__ void finish_direct(const MatmulParams& p, const Tile& tile, int warp, const typename DirectTeam<C>::Sums& sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int block = 0; block < C::kRows / 16; ++block) {
    if (tile.row + 16 * block >= tile.end) break;
#pragma unroll
    for (int j = 0; j < C::kWide; ++j)
      finish_block<C>(p, tile, tile.row + 16 * block + lane / 4, tile.column + (warp * C::kWide + j) * 8 + lane % 4 * 2, sums[block][j]);
  }
}

// Adds the sums of all warps, which have one segment each, in the order of k. The first warp finishes the tile.
template <class C>
__device__ __forceinline__ void finish_segments(const MatmulParams& p, const Tile& tile, uint32_t base, int slots, typename DirectTeam<C>::Sums& sums) {
  static_assert(C::kRows == 16 && C::kWide == 1, "a thread has four sums");
  const int lane = threadIdx.x % 32, bytes = slots * DirectTeam<C>::kStage, many = (p.k + p.segment - 1) / p.segment;
  float(&own)[4] = sums[0][0];
  __syncwarp();  // all lanes have read the stages
  store_shared_16(base + threadIdx.x / 32 * bytes + lane * 16, make_uint4(__float_as_uint(own[0]), __float_as_uint(own[1]), __float_as_uint(own[2]), __float_as_uint(own[3])));
  __syncthreads();
  if (threadIdx.x < 32) {
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
    const Tile tile = tiles.at(index);
    const typename Team::X x(p.x, tile.batch, tile.row, tile.end, p.k);
    const typename Team::Weight weight(p.weight, tile.weight, tile.column, p.columns, p.k);
    typename Team::Sums sums;
    if constexpr (C::kAlong > 1) {
      const int slots = direct_slots(C::kStages, p.segment), begin = warp * p.segment;
      Team{x, weight, base + warp * slots * Team::kStage, static_cast<int>(threadIdx.x % 32)}.sum(sums, begin, min(p.k, begin + p.segment), p.segment);
      finish_segments<C>(p, tile, base, slots, sums);
    } else {
      Team{x, weight, base, static_cast<int>(threadIdx.x)}.sum(sums, 0, p.k, p.segment);
      finish_direct<C>(p, tile, warp, sums);
    }
  }
}

}  // namespace opfacade
