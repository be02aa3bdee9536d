// Producer of a matmul with coded weights: TMA loads x, and threads decode the weight into panels in shared memory. Each of
// four warps fills every fourth stage, so that loads of four stages are in flight.
#pragma once
#include "kernels/common/stored.cuh"
#include "kernels/matmul/code_kinds.cuh"
#include "kernels/matmul/load.cuh"

namespace opfacade {

constexpr int kProducers = 4;    // warps
constexpr int kChunkCodes = 32;  // codes that a thread decodes at a time
// 2^126: multiplies an f32 with the exponent bits of e2m1 to the number of e2m1
constexpr float kOfE2m1 = 8.507059173023462e37f;

// A config Q of codes. kCode: kind of codes. Scale, Zero: types of the tables. kZero: kind of zero points. kWholeZero: zero
// points are codes. kGroup: elements of k per scale; 0: all of k. kOrdered: weight_groups contains the group of each element.
// kScaled: each number is multiplied by its scale; otherwise sums are. kGlobal: each number is also multiplied by the scale of
// the whole weight.
//
// Thirty-two codes of a column of the product. Loads and decoding are separate functions, so that loads of several chunks are
// in flight.
template <class C>
struct CodeChunk {
  using Q = typename C::Codes;
  static constexpr bool kBytes = Q::kCode == Code::kE4M3;
  static constexpr int kVectors = kBytes ? 2 : 1, kTables = Q::kGroup == 16 ? 2 : 1;
  uint4 words[kVectors];
  typename Stored<typename Q::Scale>::Bits scale[kTables];
  typename Stored<typename Q::Zero>::Bits zero[kTables];
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
      scale[i] = 0, zero[i] = 0;
      if (left <= 16 * i) continue;
      const int group = Q::kGroup == 0 ? 0 : (k + 16 * i + p.group_offset) / (Q::kGroup == 0 ? 1 : Q::kGroup);
      if constexpr (Q::kScaled) scale[i] = at<typename Q::Scale>(p.weight_scale, tile.weight, column, group);
      if constexpr (Q::kZero != ZeroPoint::kNone) zero[i] = at<typename Q::Zero>(p.weight_zero, tile.weight, column, group);
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
  // The number of code i of the eight codes in `word`, in f32 arithmetic. base: 2^23 plus the code that represents 0.
  static __device__ __forceinline__ float number(uint2 word, int i, float base, float factor, float shift) {
    if constexpr (kBytes) {
      const uint2 wide = E4M3::widen(i < 4 ? word.x : word.y);
      return scaled(f32_of_f16(static_cast<uint16_t>((i % 4 < 2 ? wide.x : wide.y) >> 16 * (i % 2))), factor, shift);
    } else {
      const uint32_t code = word.x >> 4 * i & 15;
      if constexpr (Q::kCode == Code::kE2M1) return scaled(__uint_as_float((code & 8) << 28 | (code & 7) << 22) * kOfE2m1, factor, shift);
      const float made = __uint_as_float(0x4b000000u | code) - base;
      return scaled(Q::kZero == ZeroPoint::kSubtracted && !Q::kWholeZero ? made - shift : made, factor, shift);
    }
  }
  static __device__ __forceinline__ float scaled(float number, float factor, float shift) {
    const float found = Q::kScaled ? number * factor : number;
    return Q::kZero == ZeroPoint::kAdded ? found + shift : found;
  }
  // Writes eight numbers, from code 8 i on. Elements after the end of k become zero, whatever their scale.
  template <bool kInside>
  __device__ __forceinline__ void write_eight(const MatmulParams& p, int i, uint32_t to) const {
    const int table = i * 8 / (kChunkCodes / kTables), rest = left - 8 * i;
    const float factor = Q::kOrdered ? 1.f : Stored<typename Q::Scale>::load(scale[table]);
    const float shift = Q::kOrdered ? 0.f : static_cast<float>(Stored<typename Q::Zero>::load(zero[table])), base = base_of(shift);
    const float whole = Q::kGlobal ? *p.weight_global : 1.f;
    uint2 word = word_of(i);
    if (Q::kCode == Code::kSigned) word.x ^= 0x88888888u;
    uint32_t pair[4], behind[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low = 0.f, high = 0.f;
      if constexpr (Q::kOrdered) {
        if (kInside || 2 * j < rest) low = ordered(p, word, 8 * i + 2 * j);
        if (kInside || 2 * j + 1 < rest) high = ordered(p, word, 8 * i + 2 * j + 1);
      } else {
        if (kInside || 2 * j < rest) low = number(word, 2 * j, base, factor, shift);
        if (kInside || 2 * j + 1 < rest) high = number(word, 2 * j + 1, base, factor, shift);
      }
      if constexpr (Q::kGlobal) low *= whole, high *= whole;
      pair[j] = C::T::pack(low, high);
      if constexpr (C::kTerms == 2) behind[j] = rest_of(low, high, pair[j]);
    }
    store_shared_16(to, make_uint4(pair[0], pair[1], pair[2], pair[3]));
    if constexpr (C::kTerms == 2) store_shared_16(to + C::kPanels * C::kColumns * 128, make_uint4(behind[0], behind[1], behind[2], behind[3]));
  }
  // The number of code i of the chunk, with scale and zero point loaded here; 0 if the index of its group is invalid.
  __device__ __forceinline__ float ordered(const MatmulParams& p, uint2 word, int i) const {
    const int group = p.weight_groups[first + i];
    if (static_cast<uint32_t>(group) >= static_cast<uint32_t>(p.num_groups)) return 0.f;
    const float factor = Q::kScaled ? Stored<typename Q::Scale>::load(at<typename Q::Scale>(p.weight_scale, batch, of, group)) : 1.f;
    float shift = 0.f;
    if constexpr (Q::kZero != ZeroPoint::kNone) shift = static_cast<float>(Stored<typename Q::Zero>::load(at<typename Q::Zero>(p.weight_zero, batch, of, group)));
    return number(word, i % 8, base_of(shift), factor, shift);
  }
  // 2^23 plus the code that represents 0.
  static __device__ __forceinline__ float base_of(float shift) {
    return (Q::kCode == Code::kSigned ? 8388616.f : 8388608.f) + (Q::kWholeZero ? shift : 0.f);
  }
  // Rounding errors of two numbers that were packed to bf16, also packed; 0 if the packed number is not finite.
  static __device__ __forceinline__ uint32_t rest_of(float low, float high, uint32_t pair) {
    const float first = __uint_as_float(pair << 16), second = __uint_as_float(pair & 0xffff0000u);
    return C::T::pack((pair & 0x7f80u) == 0x7f80u ? 0.f : low - first, (pair & 0x7f800000u) == 0x7f800000u ? 0.f : high - second);
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
  template <class S>
  static __device__ __forceinline__ typename Stored<S>::Bits at(const MatmulScales& of, int batch, int column, int group) {
    return static_cast<const typename Stored<S>::Bits*>(of.data)[batch * of.batch + column * of.row + group * of.part];
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
