// Accumulates the sums of a warpgroup over one segment of k, panel by panel. While it decodes a panel, other warpgroups
// multiply.
#pragma once
#include "kernels/matmul/coded/scaled.cuh"
#include "kernels/matmul/coded/warps.cuh"
#include "kernels/ptx/wgmma_kept.cuh"

namespace opfacade {

template <class C>
struct CodedConsumer {
  using Sums = float[C::kTokens / 2];
  const CodedShared<C>& smem;
  int warpgroup;  // index in the team
  bool shares;    // CTAs of the cluster load parts of x into each other's shared memory
  Ring<C::kCodeStages> codes_ring;
  Ring<C::kXStages> x_ring;

  __device__ __forceinline__ void sum(Sums& sums, const MatmulParams& p, const Tile& tile, const Segment& segment) {
    if constexpr (C::kSize == 1) return sum_scaled(sums, p, tile, segment);
    else sum_decoded(sums, p, tile, segment);
  }

 private:
  __device__ __forceinline__ void sum_scaled(Sums& sums, const MatmulParams& p, const Tile& tile, const Segment& segment) {
    clear<C>(sums);
    each_stage<C, PartFactors<C>>(p, tile, warpgroup, segment, [&](PartFactors<C> (&factors)[2], const CodeTables<C>& tables, int stage, int panels) {
      const uint32_t line = line_of(smem.codes(codes_ring.stage) + warpgroup * kCodesPart);
      codes_ring.wait_full(smem.codes_full(codes_ring.stage));
#pragma unroll
      for (int panel = 0; panel < kCodesPanels / 2; ++panel) {
        if (2 * panel >= panels) break;
        const int place = panel % C::kXPanels;
        if (place == 0) x_ring.wait_full(smem.x_full(x_ring.stage));
        multiply_scaled<C>(sums, factors, tables, line, smem.x(x_ring.stage) + place * CodedShared<C>::kPanelX, stage, panel);
        if (place + 1 == C::kXPanels || 2 * (panel + 1) >= panels) {
          release_x();
          x_ring.advance();
        }
      }
      warp_arrive_at(smem.codes_empty(codes_ring.stage));
      codes_ring.advance();
    });
  }
  __device__ __forceinline__ void sum_decoded(Sums& sums, const MatmulParams& p, const Tile& tile, const Segment& segment) {
    const uint32_t both = both_codes();
    if constexpr (C::kByWarps || C::kSums) clear<C>(sums);
    each_stage<C>(p, tile, warpgroup, segment, [&](Decoder<C> (&decoder)[2], const CodeTables<C>& tables, int stage, int panels) {
      if constexpr (C::kByWarps) multiply_by_warps(sums, decoder, tables, both, stage, panels);
      else if constexpr (C::kSums) multiply_groups(sums, decoder, tables, both, stage, panels);
      else multiply(sums, decoder, tables, both, stage, panels);
    });
  }

  // Lane r of each warp signals the CTA whose aside() is r that the warp has read the stage of x.
  __device__ __forceinline__ void release_x() const {
    if (C::kAside == 1 || !shares) return warp_arrive_at(smem.x_empty(x_ring.stage));
    const int lane = threadIdx.x % 32, to = CodedTiles<C>::rank(CodedTiles<C>::segment(), lane % C::kAside);
    __syncwarp();
    mbarrier_arrive_remote_if(lane < C::kAside, cluster_address(smem.x_empty(x_ring.stage), to));
  }
  // Multiplies one stage. ptxas runs no product while registers of another A operand are written, so each product is waited for
  // before the next panel is decoded. Codes of the next panel are loaded before the wait.
  __device__ __forceinline__ void multiply(Sums& sums, Decoder<C> (&decoder)[2], const CodeTables<C>& tables, uint32_t both, int stage, int panels) {
    const uint32_t line = line_of(smem.codes(codes_ring.stage) + warpgroup * kCodesPart);
    codes_ring.wait_full(smem.codes_full(codes_ring.stage));
    PanelCodes codes(line, 0);
#pragma unroll
    for (int panel = 0; panel < kCodesPanels; ++panel) {
      if (panel >= panels) break;
      uint32_t a[16];
      decode_panel<C>(a, codes, decoder, tables, both, stage, panel);
      if (panel % C::kXPanels == 0) x_ring.wait_full(smem.x_full(x_ring.stage));
      const uint32_t x = smem.x(x_ring.stage) + panel % C::kXPanels * CodedShared<C>::kPanelX;
      wgmma_fence();
      WgmmaKept<typename C::T, C::kTokens>::rs(sums, a, Descriptors(panel_descriptor(x, 1024, 0), 32), stage + panel > 0);
      wgmma_commit();
      if (panel + 1 < kCodesPanels) codes = PanelCodes(line, panel + 1);
      wgmma_wait<0>();
      keep_alive(a), pin(sums);
      if ((panel + 1) % C::kXPanels == 0 || panel + 1 == panels) {
        release_x();
        x_ring.advance();
      }
    }
    warp_arrive_at(smem.codes_empty(codes_ring.stage));
    codes_ring.advance();
  }

  // Like multiply, for scales that multiply sums of groups. Sums need the registers, so codes are not loaded ahead.
  __device__ __forceinline__ void multiply_groups(Sums& sums, Decoder<C> (&decoder)[2], const CodeTables<C>& tables, uint32_t both, int stage, int panels) {
    const uint32_t line = line_of(smem.codes(codes_ring.stage) + warpgroup * kCodesPart);
    SegmentSums<C> found(sums);
    codes_ring.wait_full(smem.codes_full(codes_ring.stage));
#pragma unroll
    for (int panel = 0; panel < kCodesPanels; ++panel) {
      if (panel >= panels) break;
      uint32_t a[16];
#pragma unroll
      for (int step = 0; step < 4; step += 2) {
        const ChunkCodes codes(line, 2 * panel + step / 2);
        decode_step<C>(a + 4 * step, codes, decoder, tables, both, stage, panel, step);
        decode_step<C>(a + 4 * step + 4, codes, decoder, tables, both, stage, panel, step + 1);
      }
      if (panel % C::kXPanels == 0) x_ring.wait_full(smem.x_full(x_ring.stage));
      multiply_groups(found, a, smem.x(x_ring.stage) + panel % C::kXPanels * CodedShared<C>::kPanelX, tables, stage, panel, panel + 1 == panels);
      if ((panel + 1) % C::kXPanels == 0 || panel + 1 == panels) {
        release_x();
        x_ring.advance();
      }
    }
    warp_arrive_at(smem.codes_empty(codes_ring.stage));
    codes_ring.advance();
  }
  // Multiplies a panel. x: its shared address. last: whether this is the last panel of the stage.
  __device__ __forceinline__ void multiply_groups(SegmentSums<C>& found, const uint32_t (&a)[16], uint32_t x, const CodeTables<C>& tables, int stage, int panel, bool last) {
    const Descriptors rows(panel_descriptor(x, 1024, 0), 32);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma_fence();
      WgmmaKept<typename C::T, C::kTokens>::step(found.products, a + 4 * step, rows, step, found.continues(panel, step, true));
      if (step < 3 && !found.ends(panel, step)) continue;
      wgmma_commit();
      wgmma_wait<0>();
      keep_alive(a), pin(found.products);
      if (found.ends(panel, step) || last) found.take(tables, stage, panel), found.add(step);
    }
  }

  // Multiplies one stage by mma.sync. A warp does not wait for other warps, and decodes a panel while its products of the
  // previous panel run.
  __device__ __forceinline__ void multiply_by_warps(Sums& sums, Decoder<C> (&decoder)[2], const CodeTables<C>& tables, uint32_t both, int stage, int panels) {
    static_assert(C::kXPanels == kCodesPanels, "a stage of x is one of codes");
    const uint32_t line = line_of(smem.codes(codes_ring.stage) + warpgroup * kCodesPart), x = smem.x(x_ring.stage);
    codes_ring.wait_full(smem.codes_full(codes_ring.stage));
    x_ring.wait_full(smem.x_full(x_ring.stage));
    multiply_stage<C>(sums, decoder, tables, both, stage, panels, line, x);
    release_x(), warp_arrive_at(smem.codes_empty(codes_ring.stage));
    x_ring.advance(), codes_ring.advance();
  }
};

}  // namespace opfacade
