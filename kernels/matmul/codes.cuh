// The producer of a product whose weight has codes of four bits: TMA loads x, and threads decode the weight into its panels. Each
// warp has every fourth stage to itself, so that reads of four stages are under way at once.
#pragma once
#include "kernels/common/stored.cuh"
#include "kernels/matmul/load.cuh"

namespace opfacade {

constexpr int kProducers = 4;   // warps
constexpr int kChunkCodes = 32;  // in sixteen bytes; those of a chunk share a scale

enum class ZeroPoint { kNone, kSubtracted, kAdded };

// A config Q of codes: Scale, Zero, the types of the tables; kZero; kSigned, whether codes are two's complement; kGroup, elements of
// k that share a scale, 0: all; kWholeZero: zero points are codes.
//
// Thirty-two codes of a column of the product, in two steps, so that reads of several are under way.
template <class C>
struct CodeChunk {
  using Q = typename C::Codes;
  uint4 words;
  typename Stored<typename Q::Scale>::Bits scale;
  typename Stored<typename Q::Zero>::Bits zero;
  int left;  // elements from here on that weight has; 0 and less: none

  __device__ __forceinline__ void ask(const MatmulParams& p, const Tile& tile, int column, int k) {
    words = make_uint4(0, 0, 0, 0), scale = 0, zero = 0;
    left = column < p.columns ? p.k - k : 0;
    if (left <= 0) return;
    const uint8_t* from = static_cast<const uint8_t*>(p.weight.data) + tile.weight * p.weight.batch + column * p.weight.row + k / 2;
    const bool whole = p.weight_wide != 0 && left >= kChunkCodes;
    words = whole ? *reinterpret_cast<const uint4*>(from) : chunk_of(from, 1, (left + 1) / 2);
    const int group = Q::kGroup == 0 ? 0 : (k + p.group_offset) / (Q::kGroup == 0 ? 1 : Q::kGroup);
    scale = at<typename Q::Scale>(p.weight_scale, tile.weight, column, group);
    if constexpr (Q::kZero != ZeroPoint::kNone) zero = at<typename Q::Zero>(p.weight_zero, tile.weight, column, group);
  }
  // The number of a code in f32 arithmetic, given 2^23 plus the code, or that of the other sign bit. base: what is 0 there.
  static __device__ __forceinline__ float number(float made, float base, float factor, float shift) {
    if constexpr (Q::kZero == ZeroPoint::kSubtracted && !Q::kWholeZero) return (made - base - shift) * factor;
    if constexpr (Q::kZero == ZeroPoint::kAdded) return (made - base) * factor + shift;
    return (made - base) * factor;
  }
  // Eight numbers from a word; where not all are inside, zeros for those past the end of k, whatever their scale.
  template <bool kInside>
  __device__ __forceinline__ uint4 eight(uint32_t word, int rest) const {
    const float factor = Stored<typename Q::Scale>::load(scale), shift = static_cast<float>(Stored<typename Q::Zero>::load(zero));
    const float base = (Q::kSigned ? 8388616.f : 8388608.f) + (Q::kWholeZero ? shift : 0.f);
    uint32_t pair[4];
    if (Q::kSigned) word ^= 0x88888888u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = number(__uint_as_float(0x4b000000u | (word >> 8 * i & 15)), base, factor, shift);
      const float high = number(__uint_as_float(0x4b000000u | (word >> (8 * i + 4) & 15)), base, factor, shift);
      pair[i] = C::T::pack(kInside || 2 * i < rest ? low : 0.f, kInside || 2 * i + 1 < rest ? high : 0.f);
    }
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
  }
  // half: which half of a line of the panel.
  __device__ __forceinline__ void decode(uint32_t panel, int line, int half) const {
    if (left >= kChunkCodes) write<true>(panel, line, half); else write<false>(panel, line, half);
  }

 private:
  template <bool kInside>
  __device__ __forceinline__ void write(uint32_t panel, int line, int half) const {
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) store_shared_16(panel + panel_address(line, 4 * half + i), eight<kInside>(word[i], left - 8 * i));
  }
  template <class S>
  static __device__ __forceinline__ typename Stored<S>::Bits at(const MatmulScales& of, int batch, int column, int group) {
    return static_cast<const typename Stored<S>::Bits*>(of.data)[batch * of.batch + column * of.row + group * of.part];
  }
};

// The chunks of a thread that are read at once: chunk i of a stage is part i % kParts of a column.
template <class C>
struct CodeBatch {
  static constexpr int kParts = 2 * C::kPanels, kAll = C::kColumns * kParts / 32;  // of a thread in a stage
  static constexpr int kMost = C::kRows == 64 ? 4 : 2;  // beside two computing warpgroups registers are few
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
  __device__ __forceinline__ void decode(uint32_t weight, int batch) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = place(batch, i), part = at % kParts;
      chunk[i].decode(weight + part / 2 * C::kColumns * 128, at / kParts, part % 2);
    }
  }
};

// x of one stage, by one warp.
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
  // A warp is at most so far ahead of consumers that the parity of a stage tells its last two uses apart.
  static_assert(C::kStages >= kProducers, "another warp fills the stage before");
  const int warp = threadIdx.x / 32 % kProducers, count = tiles.count(p);
  uint32_t before = 0;  // stages of the tiles so far
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
        now.decode(smem.weight(stage), batch);
        now = later;
      }
      fence_async_shared();
      mbarrier_arrive(smem.full(stage));
    }
  }
}

}  // namespace opfacade
