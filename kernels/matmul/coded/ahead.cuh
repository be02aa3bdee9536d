// Accumulates the sums of a warpgroup that computes all segments of k for its columns. It decodes the next panel between the
// k-steps of the current one. Decoding ahead continues from one segment of k to the next, and tables of the next
// tile are loaded during the current tile; only the accumulators start again with each segment.
// requires: ptxas >= 13.3
#pragma once
#include "kernels/matmul/coded/parked.cuh"
#include "kernels/matmul/coded/warps.cuh"
#include "kernels/ptx/compute_here.cuh"
#include "kernels/ptx/wgmma_kept.cuh"

namespace opfacade {

template <class C>
struct AheadConsumer {
  static_assert(C::kXPanels == 1, "a stage of x is a panel");
  using Sums = float[C::kTokens / 2];
  using Segments = SegmentSums<C>;
  using Operands = uint32_t[2][16];  // A operands of the current panel and of the next panel
  const MatmulParams& p;
  const CodedShared<C>& smem;
  int warpgroup;
  bool shares;  // CTAs of the cluster load parts of x into each other's shared memory
  CodeTables<C> tables;
  Decoder<C> decoder[2];
  uint32_t both;
  Ring<C::kCodeStages> codes_ring;
  Ring<C::kXStages> x_ring;
  int before;  // stage of x that the previous product reads; negative: none

  __device__ __forceinline__ AheadConsumer(const MatmulParams& of, const CodedShared<C>& shared, int which, bool some, const Tile& tile)
      : p(of), smem(shared), warpgroup(which), shares(some), tables(of, tile, which), both(both_codes()), before(-1) {
    tables.ask(0);
  }
  // Accumulates the sums of one tile. next: the following tile, whose tables are loaded during this one.
  __device__ __forceinline__ void sum(Sums& sums, const Tile& next) {
    Operands a;
    open(0, next);
    decode(a[0], PanelCodes(line_of_stage(), 0), 0, 0);
    if constexpr (!C::kSegments) sum_segment(sums, a, 0, p.k, next);
    else if constexpr (CodedShared<C>::kParks) sum_parked(sums, a, next);
    else sum_segments(sums, a, next);
  }

 private:
  __device__ __forceinline__ void sum_segments(Sums& sums, Operands& a, const Tile& next) {
#pragma unroll 1
    for (int begin = 0; begin < p.k; begin += p.segment) {
      Sums found;
      sum_segment(found, a, begin, min(p.k, begin + p.segment), next);
#pragma unroll
      for (int i = 0; i < C::kTokens / 2; ++i) sums[i] = begin == 0 ? found[i] : sums[i] + found[i];
    }
  }
  // Like sum_segments. Totals are in shared memory while a segment is summed.
  __device__ __forceinline__ void sum_parked(Sums& sums, Operands& a, const Tile& next) {
#pragma unroll 1
    for (int begin = 0; begin < p.k; begin += p.segment) {
      sum_segment(sums, a, begin, min(p.k, begin + p.segment), next);
      if (begin > 0) add_parked<C>(sums, warpgroup);
      if (begin + p.segment < p.k) park<C>(sums, warpgroup);
    }
    named_sync(1 + warpgroup, kWarpgroup);  // the epilogue writes to the same memory
  }
  __device__ __forceinline__ void sum_segment(Sums& sums, Operands& a, int begin, int end, const Tile& next) {
    Segments found(sums);
    if constexpr (C::kSums) clear<C>(sums);
    int k = begin;
#pragma unroll 1
    for (; k + kCodesStep <= end; k += kCodesStep) multiply(found, a, k, k > begin, next);
    if (k < end) multiply_rest(found, a[0], k, k > begin);
    wgmma_wait<0>();
    pin(sums);
  }
  // Multiplies one stage of codes, whose first panel is already decoded. Then decodes the first panel of the next stage, unless
  // this is the last stage of k.
  __device__ __forceinline__ void multiply(Segments& found, Operands& a, int k, bool accumulate, const Tile& next) {
#pragma unroll
    for (int panel = 0; panel + 1 < kCodesPanels; ++panel) {
      const ChunkCodes codes(line_of_stage(), 2 * (panel + 1));
      begin(found, a[panel % 2], k, panel, accumulate || panel > 0);
      end(found, a[panel % 2], a[(panel + 1) % 2], codes, k, panel + 1);
    }
    begin(found, a[1], k, kCodesPanels - 1, true);
    release_codes();
    if (k + kCodesStep >= p.k) return end(found, a[1], kCodesPanels - 1);
    open(k + kCodesStep, next);
    end(found, a[1], a[0], ChunkCodes(line_of_stage(), 0), k + kCodesStep, 0);
  }
  // Multiplies the last stage of k if it has fewer panels. Each product is waited for before the next panel is decoded, because
  // ptxas may assign the same registers to both.
  __device__ __forceinline__ void multiply_rest(Segments& found, uint32_t (&a)[16], int k, bool accumulate) {
    const uint32_t line = line_of_stage();
#pragma unroll
    for (int panel = 0; panel + 1 < kCodesPanels; ++panel) {
      if (panel * 64 >= p.k - k) break;
      if (panel > 0) decode(a, PanelCodes(line, panel), k, panel);
      begin(found, a, k, panel, accumulate || panel > 0);
      end(found, a, panel);
      wgmma_wait<0>();
      if (!Segments::ends(panel, 3) && (panel + 1) * 64 >= p.k - k) add(found, 3);
    }
    release_codes();
  }
  __device__ __forceinline__ void decode(uint32_t (&a)[16], const PanelCodes& codes, int k, int panel) {
    decode_panel<C>(a, codes, decoder, tables, both, k / kCodesStep, panel);
  }
  __device__ __forceinline__ void decode(uint32_t (&a)[16], const ChunkCodes& codes, int k, int panel, int step) {
    uint32_t found[4];
    decode_step<C>(found, codes, decoder, tables, both, k / kCodesStep, panel, step);
    compute_here(found, p.k, smem.base);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[4 * step + i] = found[i];
  }
  // Issues k-step `step` of panel `panel` of a stage.
  __device__ __forceinline__ void issue(Segments& found, const uint32_t (&a)[16], int panel, int step, bool accumulate) {
    const Descriptors rows(panel_descriptor(smem.x(x_ring.stage), 1024, 0), 32);
    wgmma_fence();
    WgmmaKept<typename C::T, C::kTokens>::step(found.products, a + 4 * step, rows, step, Segments::continues(panel, step, accumulate));
  }
  // Waits for the products of a group whose last k-step is `step`, and adds their sum.
  __device__ __forceinline__ void add(Segments& found, int step) {
    wgmma_commit();
    wgmma_wait<0>();
    pin(found.products);
    found.add(step);
  }
  // Issues the first k-step of panel `panel` of the stage that begins at element k. Then waits for the products of the previous
  // panel and releases the stage of x that they read.
  __device__ __forceinline__ void begin(Segments& found, const uint32_t (&a)[16], int k, int panel, bool accumulate) {
    x_ring.wait_full(smem.x_full(x_ring.stage));
    issue(found, a, panel, 0, accumulate);
    wgmma_commit();
    found.take(tables, k / kCodesStep, panel);
    wgmma_wait<1>();
    release_x();
    before = x_ring.stage;
    if (Segments::ends(panel, 0)) add(found, 0);
  }
  __device__ __forceinline__ void end(Segments& found, const uint32_t (&a)[16], int panel) {
#pragma unroll
    for (int step = 1; step < 4; ++step) {
      issue(found, a, panel, step, true);
      if (Segments::ends(panel, step)) add(found, step);
    }
    wgmma_commit();
    x_ring.advance();
  }
  // Issues the other k-steps of a panel, and decodes panel `panel` of the stage that begins at element k in between: a warp that
  // issues a product waits until the tensor cores take it, so a warp that issued all four at once would not decode meanwhile.
  __device__ __forceinline__ void end(Segments& found, const uint32_t (&a)[16], uint32_t (&next)[16], const ChunkCodes& first, int k, int panel) {
    const int own = (panel + kCodesPanels - 1) % kCodesPanels;
    decode(next, first, k, panel, 0);
    issue(found, a, own, 1, true);
    decode(next, first, k, panel, 1);
    if (Segments::ends(own, 1)) add(found, 1);
    const ChunkCodes second(line_of_stage(), 2 * panel + 1);
    issue(found, a, own, 2, true);
    decode(next, second, k, panel, 2);
    if (Segments::ends(own, 2)) add(found, 2);
    issue(found, a, own, 3, true);
    wgmma_commit();
    decode(next, second, k, panel, 3);
    if (Segments::ends(own, 3)) add(found, 3);
    x_ring.advance();
  }
  // Waits for the stage of codes that begins at element k.
  __device__ __forceinline__ void open(int k, const Tile& next) {
    const int stage = k / kCodesStep;
    if (stage % CodeTables<C>::kStages == 0 && (C::Codes::kSlot != 0 || k == 0)) turn(k + CodeTables<C>::kStages * kCodesStep, next);
    codes_ring.wait_full(smem.codes_full(codes_ring.stage));
  }
  // Switches to the tables that were loaded last. Then starts to load those of the window that begins at element k, or those of
  // the next tile if k is the end.
  __device__ __forceinline__ void turn(int k, const Tile& next) {
    tables.turn();
    if constexpr (C::Codes::kSlot == 0) decoder[0].take(tables.now[0][0]), decoder[1].take(tables.now[1][0]);
    const bool last = C::Codes::kSlot == 0 || k >= p.k;
    if (last) tables.move(next, warpgroup);
    tables.ask(last ? 0 : k);
  }
  __device__ __forceinline__ uint32_t line_of_stage() const { return line_of(smem.codes(codes_ring.stage) + warpgroup * kCodesPart); }
  // One lane signals the producer that its whole warp has read the stage.
  __device__ __forceinline__ void release_codes() {
    warp_arrive_at(smem.codes_empty(codes_ring.stage));
    codes_ring.advance();
  }
  // Lane r of each warp signals the CTA whose aside() is r that the warp has read the previous stage of x.
  __device__ __forceinline__ void release_x() const {
    const int lane = threadIdx.x % 32, stage = max(before, 0);
    if (C::kAside == 1 || !shares) return mbarrier_arrive_if(lane == 0 && before >= 0, smem.x_empty(stage));
    const int to = CodedTiles<C>::rank(CodedTiles<C>::segment(), lane % C::kAside);
    mbarrier_arrive_remote_if(lane < C::kAside && before >= 0, cluster_address(smem.x_empty(stage), to));
  }
};

// The tile that this CTA computes after tile `index`. If there is none, a tile whose first column is p.columns, which is
// outside.
template <class C>
__device__ __forceinline__ Tile tile_behind(const MatmulParams& p, const CodedTiles<C>& tiles, int index, int count) {
  const int next = index + tiles.stride();
  if (next < count) return tiles.at(next);
  Tile none{};
  none.column = p.columns;
  return none;
}

}  // namespace opfacade
