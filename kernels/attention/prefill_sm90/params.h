// Parameters of a prefill launch for sm_90a; shared by the kernel and its binding.
//
// Launch: min(SMs, slots * kv_heads * num_splits) CTAs; with split=pieces num_splits CTAs, which is the number of SMs of the
// target. Tile::kThreads threads a CTA, Tile::kSharedBytes of dynamic shared memory.
// slots = total_rows * group / kTileRows + batch; kTileRows = Tile::kRows / group * group. This is an upper bound of the row
// tiles of all requests, known without their lengths. A slot is a place for one row tile; some slots have no rows.
// Workspace, splits and the merge launch: see prefill/params.h.
#pragma once
#include "kernels/attention/prefill/params.h"
#include "kernels/common/registers.h"
#include "kernels/ptx/tensor_map.h"

namespace opfacade {

// Upper bound of the keys of a tile, a power of two. kBoxSpan / box lanes find the boxes of one tile, even if it has fewer.
constexpr int kBoxSpan = 128;

struct WgmmaPrefillParams {
  // Dimensions are innermost first. Q: column, query head of the group, kv head, row. K and V, paged: column of a panel, token
  // of 8, panel, 8-token group of a page, head of a page; ragged: column, row, head. A box is one panel of a row tile of Q, or
  // `box` tokens of K or V: paged with all columns, ragged with one panel. A panel is 128 bytes wide: 64 columns, or 128 with
  // fp8 products. fp8 cache to be dequantised: column, token, head of a page or of a ragged tensor; a box has all columns.
  TensorMap q_map;
  TensorMap k_map;
  TensorMap v_map;
  PrefillParams base;
  int32_t slots;      // upper bound of the row tiles of one kv head
  int32_t kv_heads;
  int32_t box;        // tokens per box
  int32_t box_lanes;  // lanes that find the boxes of one tile
  int32_t k_page;   // step from page to page in the dimension of k_map that counts heads of pages
  int32_t v_page;
  bool mapped;      // TMA loads; otherwise the maps are unset and threads copy
};

// Register budget: setmaxnreg works in multiples of 8 per thread; consumers + producer must not exceed 65536 registers per CTA.
// An increase that exceeds what was released deadlocks.
template <int kTileRows, int kConsumerRegisters = kTileRows == 128 ? 216 : 144, int kOwnProducerRegisters = kTileRows == 128 ? 72 : 80>
struct WgmmaBlock {
  static constexpr int kRows = kTileRows;
  static constexpr int kConsumerWarpgroups = kRows / 64, kThreads = (kConsumerWarpgroups + 1) * 128;
  static constexpr int kRegisters = kConsumerRegisters, kProducerRegisters = kOwnProducerRegisters;
  static_assert(fit_registers(kConsumerWarpgroups * kRegisters + kProducerRegisters, kConsumerWarpgroups + 1), "more registers than a CTA has");
};

// Tile shapes by head dimension; sizes in bytes. fp8 cache (kKvBytes 1): raw parts of tiles wait in a ring to be dequantised.
// kHeadDimVo: of V and o, if different from Q and K. kTileKeys: fewer keys give more stages in the same memory.
// At head_dim 64 a step is short, so three consumer warpgroups hide each other's waits better than two; tiles of 128 keys would
// leave them too few registers.
constexpr bool has_three_consumers(int head_dim, int kv_bytes) { return head_dim == 64 && kv_bytes == 2; }
constexpr int default_keys(int head_dim, int kv_bytes) { return head_dim == 256 ? 64 : has_three_consumers(head_dim, kv_bytes) ? 96 : 128; }
template <int kHeadDim, int kKvBytes = 2, int kHeadDimVo = kHeadDim, int kTileKeys = default_keys(kHeadDim, kKvBytes)>
struct WgmmaTile : WgmmaBlock<has_three_consumers(kHeadDim, kKvBytes) ? 192 : 128> {
  using WgmmaTile::WgmmaBlock::kRows;
  static constexpr int kElementBytes = 2;  // bytes of an element of Q, K and V in the products
  static constexpr int kKeys = kTileKeys;
  static constexpr int kStages = (kHeadDim == 64 ? 4 : 2) * default_keys(kHeadDim, kKvBytes) / kKeys;  // stages of K and of V
  static constexpr int kQStages = kHeadDim > 128 ? 1 : 2;
  static constexpr int kQBytes = kRows * kHeadDim * 2;
  static constexpr int kKBytes = kKeys * kHeadDim * 2;     // bytes of a K tile as an operand
  static constexpr int kVBytes = kKeys * kHeadDimVo * 2;
  static constexpr int kControlBytes = 8192;    // bytes for barriers, works, lengths and row addresses
  static constexpr int kRawSlots = kKvBytes == 2 ? 0 : kHeadDim == 64 ? 4 : 3;
  static constexpr int kRawRows = 8192 / kHeadDim < kKeys ? 8192 / kHeadDim : kKeys;
  static constexpr int kRawBytes = kRawRows * kHeadDim;
  static constexpr int kFactorBytes = kKvBytes == 1 ? kRows * 4 : 0;
  static constexpr int kSharedBytes =
      kQStages * kQBytes + kStages * (kKBytes + kVBytes) + kControlBytes + kRawSlots * kRawBytes + kFactorBytes;
};

// Tiles of fp8 products: Q, K and V are fp8, and a panel row has 128 elements. V arrives as in memory, in its own ring, and is
// transposed into operand tiles.
template <int kHeadDim>
struct WgmmaFp8Tile : WgmmaBlock<128, 224, 56> {
  static_assert(kHeadDim == 128, "a row of Q, K and stored V is one row of a panel");
  static constexpr int kElementBytes = 1;
  static constexpr int kKeys = 128;
  static constexpr int kStages = 4;
  static constexpr int kRawStages = 2;
  static constexpr int kQStages = 2;
  static constexpr int kQBytes = kRows * kHeadDim;
  static constexpr int kTileBytes = kKeys * kHeadDim;
  static constexpr int kKBytes = kTileBytes, kVBytes = kTileBytes;
  static constexpr int kControlBytes = 12288;
  static constexpr int kRawSlots = 0, kRawRows = 0, kRawBytes = 0;
  static constexpr int kSharedBytes = kQStages * kQBytes + (2 * kStages + kRawStages) * kTileBytes + kControlBytes;
};

struct WgmmaFp8PrefillParams : WgmmaPrefillParams {
  const float* q_scale;  // factors of the stored Q, or null
  int32_t q_scale_stride;  // 0 if all kv heads share one factor
};

}  // namespace opfacade
