// Producer of a matmul with gathered rows of x: threads copy rows, and TMA loads the weight. Unaligned operands are copied
// chunk by chunk, which is slow.
#pragma once
#include "kernels/matmul/load.cuh"

namespace opfacade {

// Copies the rows of x that rows tile.row to tile.end refer to; rows with an invalid index become zeros.
template <class C>
__device__ __forceinline__ void copy_rows(const MatmulParams& p, uint32_t to, const Tile& tile, int k) {
  using Bits = typename UnsignedOf<C::kSize>::Type;
  constexpr int kEach = 16 / C::kSize, kChunks = C::kPanels * 8;
  const Bits* data = static_cast<const Bits*>(p.x.data);
  const int32_t* rows = p.x_rows + static_cast<int64_t>(tile.batch) * p.rows;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpgroup; i < C::kRows * kChunks; i += kWarpgroup) {
    const int line = i / kChunks, chunk = i % kChunks, row = tile.row + line;
    const int taken = row < tile.end ? rows[row] : -1;
    const bool is = static_cast<uint32_t>(taken) < static_cast<uint32_t>(p.num_x_rows);
    const int left = is ? p.k - k - chunk * kEach : 0;
    const Bits* from = data + (is ? taken : 0) * p.x.row + (k + chunk * kEach) * p.x.k;
    store_shared_16(to + chunk / 8 * C::kRows * 128 + panel_address(line, chunk % 8), chunk_of(from, p.x.k, left));
  }
}

// Loads the weight of one step by TMA. Called by one thread.
template <class C>
__device__ __forceinline__ void load_weight(const MatmulParams& p, uint32_t stage, uint32_t full, const Tile& tile, int k) {
  mbarrier_arrive_expect(full, MatmulShared<C>::kWeight);
#pragma unroll
  for (int panel = 0; panel < C::kPanels; ++panel) {
    const uint32_t to = stage + panel * C::kColumns * 128;
    load_rows<C::kColumns, C::kWeightAcross>(to, p.weight_map, full, 0, k + panel * kPanel<C>, tile.column, tile.weight);
  }
}

// The rows of x that the rows of a tile refer to; rows with an invalid index become zeros. A thread copies chunk `chunk` of
// lines line, line + kLines and so on.
template <class C>
struct GatheredRows {
  using Bits = typename UnsignedOf<C::kSize>::Type;
  static constexpr int kEach = 16 / C::kSize, kChunks = C::kPanels * 8;  // elements per chunk; chunks of a line per stage
  static constexpr int kLines = kWarpgroup / kChunks, kCount = C::kRows / kLines;
  const MatmulParams& p;
  int line, chunk;
  int taken[kCount];  // below 0: none

  __device__ __forceinline__ GatheredRows(const MatmulParams& params, const Tile& tile)
      : p(params), line(threadIdx.x % kWarpgroup / kChunks), chunk(threadIdx.x % kWarpgroup % kChunks) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) taken[i] = row_taken(p, tile, tile.row + line + i * kLines);
  }
  // Starts to copy a stage, which begins at element k.
  __device__ __forceinline__ void begin(uint32_t stage, int k) const {
    const int at = k + chunk * kEach, bytes = min(max(p.k - at, 0), kEach) * C::kSize;
    const Bits* from = static_cast<const Bits*>(p.x.data) + (bytes > 0 ? at : 0);
    const uint32_t to = stage + chunk / 8 * C::kRows * 128;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // rows on N do not affect each other, so an invalid row may contain any numbers
      if (C::kSwapped && taken[i] < 0) continue;
      cp_async_part(to + panel_address(line + i * kLines, chunk % 8), from + max(taken[i], 0) * p.x.row, taken[i] >= 0 ? bytes : 0);
    }
  }
};

// Copies rows with aligned chunks by cp.async, and loads the weight by TMA. Called by a warpgroup. Copies of kDepth steps are
// in flight, also across tiles, when the step before them is published. A consumer releases the stage of a step only after it
// has started the next step.
template <class C, class All>
__device__ __forceinline__ void load_aligned_rows(const MatmulParams& p, const MatmulShared<C>& smem, const All& tiles) {
  constexpr int kDepth = C::kStages < 8 ? C::kStages - 2 : 6;
  static_assert(kDepth > 0, "three stages at least");
  Ring<C::kStages> ring, done;
  int begun = 0;
  const auto hand_on = [&] {
    publish_writes(smem.full(done.stage));
    done.advance();
  };
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    const GatheredRows<C> rows(p, tile);
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step, ring.advance()) {
      const int k = step * C::kPanels * kPanel<C>;
      ring.wait_empty(smem.empty(ring.stage));
      if (threadIdx.x % kWarpgroup == 0) load_weight<C>(p, smem.weight(ring.stage), smem.full(ring.stage), tile, k);
      rows.begin(smem.x(ring.stage), k);
      cp_async_commit();
      if (begun == kDepth) cp_async_wait<kDepth>(), hand_on(); else ++begun;
    }
  }
  cp_async_wait<0>();
  for (; begun > 0; --begun) hand_on();
}

// Called by a warpgroup. One of its threads loads the weight if the weight has a tensor map.
template <class C, class All>
__device__ __forceinline__ void load_gathered(const MatmulParams& p, const MatmulShared<C>& smem, const All& tiles) {
  static_assert(C::kCluster == 1 && !C::kXAcross, "rows of x are copied one by one");
  if (p.mapped != 0 && p.x_wide != 0) return load_aligned_rows<C>(p, smem, tiles);
  Ring<C::kStages> ring;
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    for (int step = 0; step < tiles.steps; ++step, ring.advance()) {
      const int k = step * C::kPanels * kPanel<C>;
      const uint32_t full = smem.full(ring.stage);
      ring.wait_empty(smem.empty(ring.stage));
      if (p.mapped == 0) {
        copy_panels<C, C::kColumns, C::kWeightAcross>(smem.weight(ring.stage), p.weight, tile.weight, tile.column, p.columns, k, p.k);
      } else if (threadIdx.x % kWarpgroup == 0) {
        load_weight<C>(p, smem.weight(ring.stage), full, tile, k);
      }
      copy_rows<C>(p, smem.x(ring.stage), tile, k);
      publish_writes(full);
    }
  }
}

}  // namespace opfacade
