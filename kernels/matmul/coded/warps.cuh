// Products of stages of codes and x by mma.sync, and the loop over the stages of a segment of k.
#pragma once
#include "kernels/matmul/coded/bytes.cuh"
#include "kernels/matmul/coded/group_sums.cuh"
#include "kernels/ptx/mma_chain.cuh"

namespace opfacade {

template <class C>
__device__ __forceinline__ void clear(float (&sums)[C::kTokens / 2]) {
#pragma unroll
  for (int i = 0; i < C::kTokens / 2; ++i) sums[i] = 0.f;
}

// Shared address of the first codes of this thread's first column (see PanelCodes). part: shared address of the warpgroup's
// codes.
__device__ __forceinline__ uint32_t line_of(uint32_t part) {
  return part + threadIdx.x % kWarpgroup / 32 * 2048 + panel_address(threadIdx.x % 32 / 4, 0);
}

// Calls multiply(decoders, tables, stage, number of panels of 64 elements) for each stage of a segment, in the order of k.
template <class C, class OfCodes = Decoder<C>, class Multiply>
__device__ __forceinline__ void each_stage(const MatmulParams& p, const Tile& tile, int warpgroup, const Segment& segment, const Multiply& multiply) {
  CodeTables<C> tables(p, tile, warpgroup);
  OfCodes decoder[2];
  tables.ask(segment.begin);
  if constexpr (C::Codes::kSlot == 0) {
    tables.turn();
    decoder[0].take(tables.now[0][0]), decoder[1].take(tables.now[1][0]);
  }
#pragma unroll 1
  for (int k = segment.begin, stage = 0; k < segment.end; k += kCodesStep, ++stage) {
    if (C::Codes::kSlot != 0 && stage % CodeTables<C>::kStages == 0) {
      tables.turn();
      tables.ask(k + CodeTables<C>::kStages * kCodesStep);
    }
    multiply(decoder, tables, stage, min(kCodesPanels, (segment.end - k + 63) / 64));
  }
}

// Loads the B operand of panel `panel` for the eight rows of x with index `rows`.
template <class C>
__device__ __forceinline__ void load_eight(uint32_t (&b)[2][4], int panel, int rows, uint32_t x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) ldmatrix_x4(b[i], x + panel * CodedShared<C>::kPanelX + rows * 1024 + panel_address(lane % 8, 4 * i + lane / 8));
}

// Adds the products of a k-step of a panel to the sums of eight rows.
template <class C>
__device__ __forceinline__ void multiply_step(float (&sums)[4], const uint32_t (&a)[16], const uint32_t (&b)[2][4], int step) {
  const uint32_t of[4] = {a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3]};
  mma_chain<typename C::T>(sums, of, b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
}

// Multiplies a panel and adds the products to `sums`. a: A operand of its k-steps; x: shared address of the first panel of x.
template <class C>
__device__ __forceinline__ void multiply_rows(float (&sums)[C::kTokens / 2], const uint32_t (&a)[16], int panel, uint32_t x) {
#pragma unroll
  for (int rows = 0; rows < C::kTokens / 8; ++rows) {
    uint32_t b[2][4];
    load_eight<C>(b, panel, rows, x);
    float(&own)[4] = *reinterpret_cast<float(*)[4]>(sums + 4 * rows);
#pragma unroll
    for (int step = 0; step < 4; ++step) multiply_step<C>(own, a, b, step);
  }
}

// Like multiply_rows, for scales that multiply sums of groups. last: whether this is the last panel of the stage.
template <class C>
__device__ __forceinline__ void multiply_groups(SegmentSums<C, true>& found, const uint32_t (&a)[16], int panel, uint32_t x, bool last) {
#pragma unroll
  for (int rows = 0; rows < C::kTokens / 8; ++rows) {
    uint32_t b[2][4];
    load_eight<C>(b, panel, rows, x);
    float(&own)[4] = *reinterpret_cast<float(*)[4]>(found.products + 4 * rows);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (!found.continues(panel, step, true)) own[0] = own[1] = own[2] = own[3] = 0.f;
      multiply_step<C>(own, a, b, step);
      if (found.ends(panel, step) || (last && step == 3)) found.add(step, rows);
    }
  }
}

// line: result of line_of. last: whether this is the last panel of the stage.
template <class C>
__device__ __forceinline__ void multiply_panel(SegmentSums<C>& found, Decoder<C> (&decoder)[2], const CodeTables<C>& tables, uint32_t both, int stage, int panel, uint32_t line, uint32_t x, bool last) {
  uint32_t a[16];
  found.take(tables, stage, panel);
  if constexpr (C::kLines == 1) decode_panel<C>(a, PanelCodes(line, panel), decoder, tables, both, stage, panel);
  else decode_bytes<C>(a, decoder, tables, stage, panel, line);
  if constexpr (C::kSums) multiply_groups<C>(found, a, panel, x, last);
  else multiply_rows<C>(found.products, a, panel, x);
}

template <class C>
__device__ __forceinline__ void multiply_stage(float (&sums)[C::kTokens / 2], Decoder<C> (&decoder)[2], const CodeTables<C>& tables, uint32_t both, int stage, int panels, uint32_t line, uint32_t x) {
  static_assert(C::kXPanels == kCodesPanels, "a stage of x is one of codes");
  SegmentSums<C> found(sums);
  if (panels == kCodesPanels) {  // a whole stage needs no branches between panels
#pragma unroll
    for (int panel = 0; panel < kCodesPanels; ++panel) multiply_panel<C>(found, decoder, tables, both, stage, panel, line, x, panel + 1 == kCodesPanels);
  } else {
#pragma unroll
    for (int panel = 0; panel + 1 < kCodesPanels; ++panel)
      if (panel < panels) multiply_panel<C>(found, decoder, tables, both, stage, panel, line, x, panel + 1 == panels);
  }
}

}  // namespace opfacade
