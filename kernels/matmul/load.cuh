// Producer of a matmul: TMA loads operands, or threads copy elements with any stride and alignment.
#pragma once
#include "kernels/matmul/copied_lines.cuh"
#include "kernels/matmul/factors.cuh"
#include "kernels/matmul/tiles.cuh"

namespace opfacade {

// Loads kRows rows of a panel, from row `row` and element k. mask: CTAs of the cluster that receive them; 0: only this CTA.
template <int kRows, bool kRowsAcross>
__device__ __forceinline__ void load_rows(uint32_t to, const TensorMap& map, uint32_t full, uint16_t mask, int k, int row, int batch) {
#pragma unroll
  for (int first = 0; first < kRows; first += kRowsAcross ? kPanelRows : kRows) {
    const BoxAt at = kRowsAcross ? BoxAt{{row + first, k, batch, 0, 0}} : BoxAt{{k, row, batch, 0, 0}};
    if (mask == 0) tma_load(to + first * 128, map, full, at); else tma_load_multicast(to + first * 128, map, full, mask, at);
  }
}

// Loads the rows of x of a tile in units of kRowsUnit rows (see tiles.cuh).
template <class C>
__device__ __forceinline__ void load_units(const MatmulParams& p, uint32_t x, uint32_t full, const Tile& tile, int k) {
  const int units = units_of<C>(tile);
  for (int unit = 0; unit < units; ++unit) load_rows<kRowsUnit<C>, false>(x + unit * kRowsUnit<C> * 128, p.x_map, full, 0, k, tile.row + unit * kRowsUnit<C>, tile.batch);
}

// Bytes of a stage between two terms of the weight.
template <class C>
constexpr int kTerm = C::kPanels * C::kColumns * 128;

// Loads the panels of x and of the weight that begin at element k. In a cluster each CTA loads a part of the weight for all
// CTAs.
template <class C>
__device__ __forceinline__ void load_part(const MatmulParams& p, uint32_t x, uint32_t weight, uint32_t full, const Tile& tile, int k) {
  constexpr int kPart = C::kColumns / C::kCluster;
  const int first = Tiles<C>::rank() * kPart;
  if constexpr (C::kSwapped) load_units<C>(p, x, full, tile, k); else load_rows<C::kRows, C::kXAcross>(x, p.x_map, full, 0, k, tile.row, tile.batch);
#pragma unroll
  for (int term = 0; term < C::kTerms; ++term)
    load_rows<kPart, C::kWeightAcross>(weight + kTerm<C> * term + first * 128, p.weight_map, full, C::kCluster > 1 ? (1 << C::kCluster) - 1 : 0, k,
                                       tile.column + first, tile.weight * C::kTerms + term);
}

// Loads the panels of one step, which begins at element k, to a free stage. Called by one thread.
template <class C>
__device__ __forceinline__ void load_step(const MatmulParams& p, const MatmulShared<C>& smem, int stage, const Tile& tile, int k) {
  const uint32_t full = smem.full(stage);
  const int rows = C::kSwapped ? units_of<C>(tile) * kRowsUnit<C> : p.x_box;
  mbarrier_arrive_expect(full, MatmulShared<C>::kStage - C::kPanels * (C::kRows - rows) * 128);
#pragma unroll
  for (int panel = 0; panel < C::kPanels; ++panel)
    load_part<C>(p, smem.x(stage) + panel * C::kRows * 128, smem.weight(stage) + panel * C::kColumns * 128, full, tile, k + panel * kPanel<C>);
}

// Loads all steps of all tiles of this CTA. Called by one thread. Elements outside a tensor arrive as zeros.
template <class C, class All>
__device__ __forceinline__ void load_mapped(const MatmulParams& p, const MatmulShared<C>& smem, const All& tiles) {
  Ring<C::kStages> ring;
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    for (int step = 0; step < tiles.steps; ++step, ring.advance()) {
      ring.wait_empty(smem.empty(ring.stage));
      load_step<C>(p, smem, ring.stage, tile, (tiles.begin + step) * C::kPanels * kPanel<C>);
    }
  }
}

// Copies panels of one operand, from row `first` and element k. Adjacent threads copy adjacent chunks of a line. A line is a
// row, or with kRowsAcross one element of k of all rows.
template <class C, int kRows, bool kRowsAcross>
__device__ __forceinline__ void copy_panels(uint32_t to, const MatmulOperand& from, int batch, int first, int rows, int k, int size,
                                            int thread = threadIdx.x % kWarpgroup, int threads = kWarpgroup) {
  using Bits = typename UnsignedOf<C::kSize>::Type;
  constexpr int kEach = 16 / C::kSize;  // elements per chunk
  constexpr int kLines = kRowsAcross ? C::kPanels * kPanel<C> : kRows, kChunks = kRowsAcross ? kRows / kEach : C::kPanels * 8;
  constexpr int kGroup = kRowsAcross ? kAcross : kRows * 128;  // bytes between consecutive sets of eight chunks
  const int64_t line_step = kRowsAcross ? from.k : from.row, step = kRowsAcross ? from.row : from.k;
  const int lines = kRowsAcross ? size - k : rows - first, length = kRowsAcross ? rows - first : size - k;
  const Bits* base = static_cast<const Bits*>(from.data) + batch * from.batch + first * from.row + k * from.k;
  const int before = kRowsAcross ? first : k;
  // chunks in flight per thread; a thread with few registers loads one at a time
  constexpr int kBatch = kComputing<C> == 1 ? 4 : 1;
#pragma unroll 1
  for (int start = thread; start < kLines * kChunks; start += kBatch * threads) {
    LineChunk<Bits> found[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = start + j * threads, line = i / kChunks, chunk = i % kChunks;
      found[j].load(base + line * line_step + chunk * kEach * step, step, before + chunk * kEach, line < lines ? length - chunk * kEach : 0);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = start + j * threads, line = i / kChunks, chunk = i % kChunks;
      const uint32_t at = kRowsAcross ? line / kPanel<C> * kRows * 128 + panel_address(line % kPanel<C>, chunk % 8) : panel_address(line, chunk % 8);
      if (i < kLines * kChunks) store_shared_16(to + chunk / 8 * kGroup + at, found[j].get());
    }
  }
}

// The panels of an operand that belong to one tile. A warpgroup copies them.
template <class C, int kRows, bool kRowsAcross>
struct CopiedTile {
  const MatmulOperand& from;
  int batch, first, rows, size;
  CopiedLines<C, kRows> lines;

  __device__ __forceinline__ CopiedTile(const MatmulOperand& of, int at, int row, int end, int k)
      : from(of), batch(at), first(row), rows(end), size(k), lines(of, at, row, end, k) {}
  __device__ __forceinline__ bool in_lines() const { return !kRowsAcross && from.k == 1; }
  // behind: the step follows the last step, so only its first vectors are needed.
  __device__ __forceinline__ void copy(uint32_t stage, int k, bool behind) const {
    if (in_lines()) return lines.copy(stage, k, behind);
    if (!behind) copy_panels<C, kRows, kRowsAcross>(stage, from, batch, first, rows, k, size);
  }
  __device__ __forceinline__ void copy_first(uint32_t stage) const {
    if constexpr (CopiedLines<C, kRows>::kApart) {
      if (in_lines()) lines.copy_first(stage);
    }
  }
  __device__ __forceinline__ void shift(uint32_t stage, uint32_t next, int k) const {
    if (in_lines()) lines.shift(stage, next, k);
  }
};

// The panels of the weight of a tile: those of each term. Two terms are made again for each step, because the producer has few
// registers.
template <class C>
struct CopiedWeight {
  using Term = CopiedTile<C, C::kColumns, C::kWeightAcross>;
  Term only;

  __device__ __forceinline__ CopiedWeight(const MatmulOperand& of, int batch, int column, int columns, int k) : only(of, batch * C::kTerms, column, columns, k) {}
  // of: a function of a term and the offset of its panels.
  template <class Of>
  __device__ __forceinline__ void each(const Of& of) const {
    if constexpr (C::kTerms == 1) return of(only, 0);
#pragma unroll 1
    for (int term = 0; term < C::kTerms; ++term) of(Term(only.from, only.batch + term, only.first, only.rows, only.size), term * kTerm<C>);
  }
  __device__ __forceinline__ void copy(uint32_t stage, int k, bool behind) const {
    each([&](const Term& of, int at) { of.copy(stage + at, k, behind); });
  }
  __device__ __forceinline__ void copy_first(uint32_t stage) const {
    each([&](const Term& of, int at) { of.copy_first(stage + at); });
  }
  __device__ __forceinline__ void shift(uint32_t stage, uint32_t next, int k) const {
    each([&](const Term& of, int at) { of.shift(stage + at, next + at, k); });
  }
};

// Copies the steps of one tile, from step `begin` on. Called by a warpgroup. While copies of kDepth steps are in flight, the
// chunks of the step before them are shifted to their alignment. A shift also reads the first vectors of the next stage, so
// these are copied after the last step too. A consumer releases the stage of a step only after it has started the next step.
template <class C>
__device__ __forceinline__ void copy_steps(const MatmulShared<C>& smem, Ring<C::kStages>& ring, const CopiedTile<C, C::kRows, C::kXAcross>& x,
                                           const CopiedWeight<C>& weight, CopiedFactors<C>& factors, int begin, int steps) {
  constexpr int kDepth = C::kStages < 8 ? C::kStages - 2 : 6, kStep = C::kPanels * kPanel<C>;
  static_assert(kDepth > 0, "three stages at least");
  Ring<C::kStages> done = ring;
#pragma unroll 1
  for (int step = 0; step < steps + kDepth; ++step) {
    if (step <= steps) {
      const int k = (begin + step) * kStep;
      ring.wait_empty(smem.empty(ring.stage));
      x.copy(smem.x(ring.stage), k, step == steps), weight.copy(smem.weight(ring.stage), k, step == steps);
      if (k == 0) x.copy_first(smem.x(ring.stage)), weight.copy_first(smem.weight(ring.stage));
      if (step < steps) factors.put(smem.factors(ring.stage), begin + step + 1), ring.advance();
    }
    cp_async_commit();
    cp_async_wait<kDepth - 1>();
    if (step < kDepth) continue;
    Ring<C::kStages> next = done;
    next.advance();
    const int shifted = (begin + step - kDepth) * kStep;
    x.shift(smem.x(done.stage), smem.x(next.stage), shifted), weight.shift(smem.weight(done.stage), smem.weight(next.stage), shifted);
    publish_writes(smem.full(done.stage));
    done = next;
  }
}

// Copies all steps of all tiles of this CTA. Called by a warpgroup.
template <class C, class All>
__device__ __forceinline__ void load_copied(const MatmulParams& p, const MatmulShared<C>& smem, const All& tiles) {
  Ring<C::kStages> ring;
  const int count = tiles.count(p);
  for (int index = tiles.first(); index < count; index += tiles.stride()) {
    const Tile tile = tiles.at(index);
    const CopiedTile<C, C::kRows, C::kXAcross> x(p.x, tile.batch, tile.row, tile.end, p.k);
    const CopiedWeight<C> weight(p.weight, tile.weight, tile.column, p.columns, p.k);
    CopiedFactors<C> factors(p, tile, tiles.begin);
    copy_steps<C>(smem, ring, x, weight, factors, tiles.begin, tiles.steps);
  }
}

}  // namespace opfacade
