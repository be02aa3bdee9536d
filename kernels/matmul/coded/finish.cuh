// Epilogue of matmuls with coded weights. The sums of a tile are in shared memory, one line per row of x. Threads read adjacent
// columns, add the sums of all segments in the order of k, apply the program of the plan, and store.
#pragma once
#include "kernels/matmul/coded/rings.cuh"
#include "kernels/matmul/finish.cuh"

namespace opfacade {

constexpr int kCodesPairs = kCodesRows / 2;  // pairs of adjacent columns: one per lane

// Writes the first kRound rows of a thread's sums (layout: wgmma.cuh) to the partial sums of its warpgroup.
template <class C, int kCount>
__device__ __forceinline__ void put_partial(int warpgroup, const float (&sums)[kCount]) {
  const int thread = threadIdx.x % kWarpgroup, column = thread / 32 * 16 + thread % 32 / 4, token = thread % 4 * 2;
  float* to = reinterpret_cast<float*>(dynamic_shared() + CodedShared<C>::partial(warpgroup)) + token * kSumsPitch + column;
#pragma unroll
  for (int i = 0; i < CodedShared<C>::kRound / 2; ++i) to[(i / 4 * 8 + i % 2) * kSumsPitch + i % 4 / 2 * 8] = sums[i];
}

// Finishes a pair of columns for this thread's rows of a round. first: index of the thread among `threads`, which form whole
// warps. add(row): the total sums of both columns, for row `row` of the round.
template <class C, class Add>
__device__ __forceinline__ void finish_round(const MatmulParams& p, const Tile& tile, int column, int first, int threads, const Add& add) {
  using Program = typename C::Program;
  const int left = p.columns - column;
  if (left <= 0) return;
  typename Program::Columns columns;
  Program::load_columns(columns, p, tile.weight, column, left);
  // rows that are read together if each has only one sum to read
  constexpr int kEach = C::kAlong == 1 && CodedShared<C>::kRound >= 16 ? 4 : 1;
  const int step = threads / kCodesPairs;
#pragma unroll 1
  for (int token = first / kCodesPairs; token < CodedShared<C>::kRound; token += kEach * step) {
    if (tile.row + token >= tile.end) return;
    float2 sum[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum[i] = add(token + i * step);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = tile.row + token + i * step;
      if (row >= tile.end) return;
      if (C::kGather && row_taken(p, tile, row) < 0) continue;
      float result[2];
      Program::values(result, p, columns, tile.batch, row, column, left, sum[i].x, sum[i].y);
      Program::store(p, tile.batch, row, column, left, result);
    }
  }
}

__device__ __forceinline__ uint32_t place_of_pair(uint32_t partial, int token) {
  return partial + (token * kSumsPitch + threadIdx.x % kCodesPairs * 2) * 4;
}

// Epilogue of a warpgroup that has all of k for its own columns.
template <class C>
__device__ __forceinline__ void finish_beside(const MatmulParams& p, Tile tile, int warpgroup, float (&sums)[C::kTokens / 2]) {
  constexpr int kRound = CodedShared<C>::kRound;
  const int column = tile.column + warpgroup * kCodesRows + threadIdx.x % kCodesPairs * 2, end = min(tile.end, tile.row + C::kTokens);
#pragma unroll 1
  for (; tile.row < end; tile.row += kRound) {
    put_partial<C>(warpgroup, sums);
    named_sync(1 + warpgroup, kWarpgroup);
    finish_round<C>(p, tile, column, threadIdx.x % kWarpgroup, kWarpgroup, [&](int token) {
      return *reinterpret_cast<const float2*>(dynamic_shared() + place_of_pair(CodedShared<C>::partial(warpgroup), token));
    });
    named_sync(1 + warpgroup, kWarpgroup);
#pragma unroll
    for (int i = 0; i + kRound / 2 < C::kTokens / 2; ++i) sums[i] = sums[i + kRound / 2];
  }
}

__device__ __forceinline__ float2 added(const float2& a, const float2& b) { return make_float2(a.x + b.x, a.y + b.y); }

// Epilogue of warpgroups, of a CTA or of a cluster, that have one segment of k each.
template <class C>
__device__ __forceinline__ void finish_along(const MatmulParams& p, const CodedShared<C>& smem, const Tile& tile, int segments) {
  constexpr int kThreads = C::kAlong * kWarpgroup;
  const int rank = CodedTiles<C>::segment(), thread = static_cast<int>(threadIdx.x) - C::kLoaders;
  finish_round<C>(p, tile, tile.column + thread % kCodesPairs * 2, thread + rank * kThreads, C::kSplit * kThreads, [&](int token) {
    float2 sum;
#pragma unroll 4
    for (int i = 0; i < segments; ++i) {
      const uint32_t at = place_of_pair(CodedShared<C>::partial(i % C::kAlong), token);
      float2 more;
      if constexpr (C::kSplit == 1) {
        more = *reinterpret_cast<const float2*>(dynamic_shared() + at);
      } else {
        const uint64_t both = cluster_load_two_words(cluster_address(smem.base + at, CodedTiles<C>::rank(i / C::kAlong, CodedTiles<C>::aside())));
        more = make_float2(__uint_as_float(static_cast<uint32_t>(both)), __uint_as_float(static_cast<uint32_t>(both >> 32)));
      }
      sum = i == 0 ? more : added(sum, more);
    }
    return sum;
  });
}

}  // namespace opfacade
