// The sums of a warpgroup over a segment of k, panel by panel: it decodes one, and multiplies it while others decode.
#pragma once
#include "kernels/matmul/coded/decode.cuh"
#include "kernels/ptx/wgmma_kept.cuh"

namespace opfacade {

template <class C>
struct CodedConsumer {
  using Sums = float[C::kTokens / 2];
  const CodedShared<C>& smem;
  int warpgroup;  // of the team
  Ring<C::kCodeStages> codes_ring;
  Ring<C::kXStages> x_ring;

  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams& p, const Tile& tile, const Segment& segment) {
    CodeTables<C> tables(p, tile, warpgroup);
    Decoder<C> decoder[2];
    const uint32_t both = both_codes();
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
      multiply(sums, decoder, tables, both, stage, min(kCodesPanels, (segment.end - k) / 64));
    }
  }

 private:
  // One lane tells the producer that all of its warp have read.
  __device__ __forceinline__ void release(uint32_t empty) const {
    __syncwarp();
    mbarrier_arrive_if(threadIdx.x % 32 == 0, empty);
  }
  // The products of a stage. ptxas runs no product while the registers of another are made: it waits for each, and loads codes of the
  // next panel before.
  __device__ __forceinline__ void multiply(Sums& sums, Decoder<C> (&decoder)[2], const CodeTables<C>& tables, uint32_t both, int stage, int panels) {
    const int thread = threadIdx.x % kWarpgroup, g = thread % 32 / 4;
    const uint32_t line = smem.codes(codes_ring.stage) + warpgroup * kCodesPart + thread / 32 * 2048 + panel_address(g, 0);
    mbarrier_wait(smem.codes_full(codes_ring.stage), codes_ring.parity);
    PanelCodes codes(line, 0);
#pragma unroll
    for (int panel = 0; panel < kCodesPanels; ++panel) {
      if (panel >= panels) break;
      uint32_t a[16];
      decode_panel<C>(a, codes, decoder, tables, both, stage, panel);
      if (panel % C::kXPanels == 0) mbarrier_wait(smem.x_full(x_ring.stage), x_ring.parity);
      const uint32_t x = smem.x(x_ring.stage) + panel % C::kXPanels * CodedShared<C>::kPanelX;
      wgmma_fence();
      WgmmaKept<typename C::T, C::kTokens>::rs(sums, a, Descriptors(panel_descriptor(x, 1024, 0), 32), stage + panel > 0);
      wgmma_commit();
      if (panel + 1 < kCodesPanels) codes = PanelCodes(line, panel + 1);
      wgmma_wait<0>();
      keep_alive(a), pin(sums);
      if ((panel + 1) % C::kXPanels == 0 || panel + 1 == panels) {
        release(smem.x_empty(x_ring.stage));
        x_ring.advance();
      }
    }
    release(smem.codes_empty(codes_ring.stage));
    codes_ring.advance();
  }
};

}  // namespace opfacade
