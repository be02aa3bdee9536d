// Producer of a matmul with coded weights: TMA loads x, and threads decode the weight into panels in shared memory. Each of
// four warps fills every fourth stage, so that loads of four stages are in flight.
#pragma once
#include "kernels/matmul/code_numbers.cuh"
#include "kernels/matmul/load.cuh"

namespace opfacade {

constexpr int kProducers = 4;    // warps
constexpr int kChunkCodes = 32;  // codes that a thread decodes at a time

// Thirty-two codes of a column of the product. Loads and decoding are separate functions, so that loads of several chunks are
// in flight.
template <class C>
struct CodeChunk {
  using Q = typename C::Codes;
  using Numbers = CodeNumbers<C>;
  using Entry = typename Numbers::Entry;
  static constexpr bool kBytes = Numbers::kBytes;
  static constexpr int kVectors = kBytes ? 2 : 1, kTables = Q::kGroup == 16 ? 2 : 1;
  uint4 words[kVectors];
  Entry entry[kTables];
  int left;  // elements of the weight from the first code on; 0 or less: none
  int batch, of, first;  // index of the weight in the batch, column, and first element; used if each element has its own group

  __device__ __forceinline__ void ask(const MatmulParams& p, const Tile& tile, int column, int k) {
    left = column < p.columns ? p.k - k : 0;
    read(p, tile, column, k);
    if constexpr (Q::kOrdered) {
      batch = tile.weight, of = column, first = k;
      return;
    }
#pragma unroll
    for (int i = 0; i < kTables; ++i) {
      entry[i] = {0, 0};
      if (left <= 16 * i) continue;
      const int group = Q::kGroup == 0 ? 0 : (k + 16 * i + p.group_offset) / (Q::kGroup == 0 ? 1 : Q::kGroup);
      entry[i] = Numbers::entry(p, tile.weight, column, group);
    }
  }
  // half: 0 for the first half of a line of the panel, 1 for the second.
  __device__ __forceinline__ void decode(const MatmulParams& p, uint32_t panel, int line, int half) const {
    if (left >= kChunkCodes) write<true>(p, panel, line, half); else write<false>(p, panel, line, half);
  }

 private:
  __device__ __forceinline__ void read(const MatmulParams& p, const Tile& tile, int column, int k) {
    const uint8_t* from = static_cast<const uint8_t*>(p.weight.data) + tile.weight * p.weight.batch + column * p.weight.row + (kBytes ? k : k / 2);
    const bool whole = p.weight_wide != 0 && left >= kChunkCodes;
    const int bytes = left <= 0 ? 0 : kBytes ? left : (left + 1) / 2;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      words[i] = make_uint4(0, 0, 0, 0);
      if (whole) words[i] = *reinterpret_cast<const uint4*>(from + 16 * i);
      else if (bytes > 16 * i) words[i] = chunk_of(from + 16 * i, 1, bytes - 16 * i);
    }
  }
  // Writes eight numbers, from code 8 i on.
  template <bool kInside>
  __device__ __forceinline__ void write_eight(const MatmulParams& p, int i, uint32_t to) const {
    const uint2 word = Numbers::prepared(word_of(i));
    const auto terms = Numbers::terms(entry[i * 8 / (kChunkCodes / kTables)]);
    const EightNumbers found = Numbers::template eight<kInside>(p, left - 8 * i, [&](int j) {
      if constexpr (Q::kOrdered) return ordered(p, word, 8 * i + j);
      return Numbers::number(word, j, terms);
    });
    store_shared_16(to, found.pairs);
    if constexpr (C::kTerms == 2) store_shared_16(to + C::kPanels * C::kColumns * 128, found.behind);
  }
  // The number of code i of the chunk, with scale and zero point loaded here; 0 if the index of its group is invalid.
  __device__ __forceinline__ float ordered(const MatmulParams& p, uint2 word, int i) const {
    const int group = p.weight_groups[first + i];
    if (static_cast<uint32_t>(group) >= static_cast<uint32_t>(p.num_groups)) return 0.f;
    return Numbers::number(word, i % 8, Numbers::terms(Numbers::entry(p, batch, of, group)));
  }
  __device__ __forceinline__ uint2 word_of(int i) const {
    const uint32_t all[8] = {words[0].x, words[0].y, words[0].z, words[0].w, words[kVectors - 1].x, words[kVectors - 1].y,
                                        words[kVectors - 1].z, words[kVectors - 1].w};
    return kBytes ? make_uint2(all[2 * i], all[2 * i + 1]) : make_uint2(all[i], 0);
  }
  template <bool kInside>
  __device__ __forceinline__ void write(const MatmulParams& p, uint32_t panel, int line, int half) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) write_eight<kInside>(p, i, panel + panel_address(line, 4 * half + i));
  }
};

// The chunks that a thread loads together. Chunk i of a stage is part i % kParts of column i / kParts.
template <class C>
struct CodeBatch {
  static constexpr int kParts = 2 * C::kPanels, kAll = C::kColumns * kParts / 32;  // chunks per thread and stage
  // with two computing warpgroups few registers are left
  static constexpr int kMost = (C::kRows == 64 ? 4 : 2) / CodeChunk<C>::kVectors;
  static constexpr int kEach = kAll < kMost ? kAll : kMost, kBatches = kAll / kEach;
  CodeChunk<C> chunk[kEach];

  __device__ __forceinline__ static int place(int batch, int i) { return (batch * kEach + i) * 32 + threadIdx.x % 32; }
  __device__ __forceinline__ void ask(const MatmulParams& p, const Tile& tile, int step, int batch) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = place(batch, i);
      chunk[i].ask(p, tile, tile.column + at / kParts, step * C::kPanels * kPanel<C> + at % kParts * kChunkCodes);
    }
  }
  __device__ __forceinline__ void decode(const MatmulParams& p, uint32_t weight, int batch) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = place(batch, i), part = at % kParts;
      chunk[i].decode(p, weight + part / 2 * C::kColumns * 128, at / kParts, part % 2);
    }
  }
};

// Loads x of one stage. Called by one warp.
template <class C>
__device__ __forceinline__ void load_x(const MatmulParams& p, const MatmulShared<C>& smem, const Tile& tile, int stage, int step) {
  const int k = step * C::kPanels * kPanel<C>, lane = threadIdx.x % 32;
  if (p.mapped == 0) {
    copy_panels<C, C::kRows, C::kXAcross>(smem.x(stage), p.x, tile.batch, tile.row, tile.end, k, p.k, lane, 32);
  } else if (lane == 0) {
    mbarrier_arrive_expect(smem.full(stage), MatmulShared<C>::kX - C::kPanels * (C::kRows - p.x_box) * 128);
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel)
      load_rows<C::kRows, C::kXAcross>(smem.x(stage) + panel * C::kRows * 128, p.x_map, smem.full(stage), 0, k + panel * kPanel<C>,
                                       tile.row, tile.batch);
  }
}

template <class C, class All>
__device__ __forceinline__ void load_coded(const MatmulParams& p, const MatmulShared<C>& smem, const All& tiles) {
  static_assert(C::kCluster == 1 && C::kSplit == 1, "each CTA decodes the weight of its own tiles");
  // A warp is never so far ahead of the consumers that the parity of a stage is ambiguous.
  static_assert(C::kStages >= kProducers, "another warp fills the stage before");
  const int warp = threadIdx.x / 32 % kProducers, count = tiles.count(p);
  uint32_t before = 0;  // stages of all earlier tiles
  for (int index = tiles.first(); index < count; index += tiles.stride(), before += tiles.steps) {
    const Tile tile = tiles.at(index);
    int step = (warp - before) % kProducers;
    CodeBatch<C> now;
    now.ask(p, tile, step, 0);
    for (; step < tiles.steps; step += kProducers) {
      const uint32_t at = before + step, stage = at % C::kStages;
      mbarrier_wait(smem.empty(stage), at / C::kStages % 2 ^ 1);
      load_x<C>(p, smem, tile, stage, step);
#pragma unroll 1
      for (int batch = 0; batch < CodeBatch<C>::kBatches; ++batch) {
        const bool last = batch + 1 == CodeBatch<C>::kBatches;
        CodeBatch<C> later;
        later.ask(p, tile, last ? step + kProducers : step, last ? 0 : batch + 1);
        now.decode(p, smem.weight(stage), batch);
        now = later;
      }
      publish_writes(smem.full(stage));
    }
  }
}

}  // namespace opfacade
