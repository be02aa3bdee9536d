// Sums of a tile of 8-bit floats. The tensor core truncates addends far more than f32 arithmetic does, so it sums parts of at
// most 128 elements of k. Each part is scaled and added to a sum in f32, in the order of k. The products of a part run while
// the previous part is added.
#pragma once
#include "kernels/matmul/scales.cuh"
#include "kernels/matmul/stage_reader.cuh"
#include "kernels/ptx/wgmma_bytes.cuh"

namespace opfacade {

// For scales that do not vary along k: parts are added unscaled, and scales multiply the whole sum.
template <class C>
struct PlainPart {
  __device__ __forceinline__ PlainPart(const MatmulParams&, const Tile&, int) {}
  __device__ __forceinline__ void read(uint32_t, int, int) const {}
  template <int kCount>
  __device__ __forceinline__ void add(float (&sums)[kCount], const float (&part)[kCount], int) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] += part[i];
  }
  __device__ __forceinline__ void later(int) const {}
};

// For block scales: each row of a part has one factor, which the producer stored next to the stage.
template <class C>
struct BlockPart {
  int own;  // this thread's first row
  float found[2][2];

  __device__ __forceinline__ BlockPart(const MatmulParams&, const Tile&, int group)
      : own(group * 64 + warpgroup_row()) {}
  // Loads the factors of one panel, before its stage is released.
  __device__ __forceinline__ void read(uint32_t factors, int panel, int slot) {
#pragma unroll
    for (int half = 0; half < 2; ++half) found[slot][half] = __uint_as_float(load_shared_4(factors + 4 * (panel * C::kRows + own + 8 * half)));
  }
  template <int kCount>
  __device__ __forceinline__ void add(float (&sums)[kCount], const float (&part)[kCount], int slot) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = fmaf(part[i], found[slot][fragment_half(i)], sums[i]);
  }
  __device__ __forceinline__ void later(int) const {}
};

// For block scales that are loaded from global memory, two parts ahead.
template <class C>
struct FarBlockPart {
  using S = typename C::Scales;
  BlockScales<C> scales;
  // number of columns, from the first one of this thread, before the second scale block
  int second;
  PartScales found[2];

  __device__ __forceinline__ FarBlockPart(const MatmulParams& p, const Tile& tile, int group)
      : scales(p, tile, tile.row + group * 64 + warpgroup_row()) {
    second = scales.second - tile.column - lane_column();
    found[0] = scales.next(), found[1] = scales.next();
  }
  __device__ __forceinline__ void read(uint32_t, int, int) const {}
  template <int kCount>
  __device__ __forceinline__ void add(float (&sums)[kCount], const float (&part)[kCount], int slot, int next = 0) {
    float factor[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int block = 0; block < (S::kTwo ? 2 : 1); ++block) factor[half][block] = found[slot].row[half] * found[slot].column[next][block];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float* own = factor[fragment_half(i)];
      sums[i] = fmaf(part[i], S::kTwo && fragment_column(i) >= second ? own[1] : own[0], sums[i]);
    }
  }
  __device__ __forceinline__ void later(int slot) { found[slot] = scales.next(); }
  __device__ __forceinline__ void turn() { found[0] = found[1], found[1] = scales.next(); }
};

// Sums parts. Own: one of the types above; it scales a part and adds it to the sums.
template <class C, class Own>
struct PartsConsumer : StageReader<C> {
  using Sums = float[C::kColumns / 2];
  using StageReader<C>::smem;
  using StageReader<C>::ring;

  // Issues the products of the next part; returns the stage that they read.
  __device__ __forceinline__ int multiply(Sums& part, Own& own, int panel, int slot) {
    const int stage = ring.stage;
    if (panel == 0) ring.wait_full(smem.full(stage));
    wgmma_fence();
    Wgmma<typename C::T, C::kColumns>::ss(part, this->x_steps(panel), this->weight_steps(panel), false);
    wgmma_commit();
    own.read(smem.factors(stage), panel, slot);
    if (panel + 1 == C::kPanels) ring.advance();
    return stage;
  }
  // Adds a part whose products are complete. slot: 0 for even parts, 1 for odd parts; with two panels per stage an odd part is
  // the last one of its stage.
  __device__ __forceinline__ void add(Sums& sums, Sums& part, Own& own, int stage, int slot) {
    pin(part);
    if (C::kPanels == 1 || slot == 1) this->release(stage);
    own.add(sums, part, slot);
    own.later(slot);
  }
  template <class All>
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams& p, const All& tiles, int index) {
    constexpr int kSecond = C::kPanels - 1;
    Own own(p, tiles.at(index), this->group);
#pragma unroll
    for (float& one : sums) one = 0.f;
    const int parts = tiles.steps * C::kPanels;
    Sums even, odd;
    int of_even = multiply(even, own, 0, 0), part = 1;
#pragma unroll 1
    for (; part + 1 < parts; part += 2) {
      const int of_odd = multiply(odd, own, kSecond, 1);
      wgmma_wait<1>();
      add(sums, even, own, of_even, 0);
      of_even = multiply(even, own, 0, 0);
      wgmma_wait<1>();
      add(sums, odd, own, of_odd, 1);
    }
    if (part < parts) {
      const int of_odd = multiply(odd, own, kSecond, 1);
      wgmma_wait<1>();
      add(sums, even, own, of_even, 0);
      wgmma_wait<0>();
      add(sums, odd, own, of_odd, 1);
    } else {
      wgmma_wait<0>();
      add(sums, even, own, of_even, 0);
    }
  }
};

// For scale blocks of the weight that begin inside a part: each part is summed as two chains, one after the other, with
// separate factors.
template <class C>
struct CutParts : StageReader<C> {
  using Sums = float[C::kColumns / 2];
  using StageReader<C>::smem;
  using StageReader<C>::ring;
  static constexpr int kCut = C::Scales::kCut;

  // next: false for the k-steps before the block boundary, true for those after it.
  __device__ __forceinline__ void multiply(Sums& part, int panel, bool next) const {
    const Descriptors x = this->x_steps(panel), weight = this->weight_steps(panel);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if ((i >= kCut) == next) WgmmaOneStep<typename C::T, C::kColumns>::ss(part, x, weight, i, i != (next ? kCut : 0));
    wgmma_commit();
  }
  template <class All>
  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams& p, const All& tiles, int index) {
    FarBlockPart<C> own(p, tiles.at(index), this->group);
#pragma unroll
    for (float& one : sums) one = 0.f;
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step) {
      ring.wait_full(smem.full(ring.stage));
#pragma unroll
      for (int panel = 0; panel < C::kPanels; ++panel) {
#pragma unroll
        for (int next = 0; next < 2; ++next) {
          Sums part;
          multiply(part, panel, next != 0);
          wgmma_wait<0>();
          pin(part);
          if (panel + 1 == C::kPanels && next == 1) this->release(ring.stage);
          own.add(sums, part, 0, next);
        }
        own.turn();
      }
      ring.advance();
    }
  }
};

template <class C>
using PlainParts = PartsConsumer<C, PlainPart<C>>;
template <class C>
using BlockParts = PartsConsumer<C, BlockPart<C>>;
template <class C>
using FarBlockParts = PartsConsumer<C, FarBlockPart<C>>;

}  // namespace opfacade
