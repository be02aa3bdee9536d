// What a prefill launch for sm_90a is told; shared by the kernel and its binding.
//
// Launch: grid min(SMs, slots * kv_heads * splits), with pieces num_splits, which is how many SMs the plan is for; block
// Tile::kThreads, dynamic shared memory WgmmaShared<head_dim>::kBytes.
// slots = total_rows * group / kTileRows + batch; kTileRows = Tile::kRows / group * group.
// Workspace, splits and the merge launch: see prefill/params.h.
#pragma once
#include "kernels/attention/prefill/params.h"
#include "kernels/ptx/tensor_map.h"

namespace opfacade {

// Lanes find boxes of tiles as if each had so many keys, a power of two that none is beyond.
constexpr int kBoxSpan = 128;

struct WgmmaPrefillParams {
  // Dimensions from the innermost. Q: 64 columns, group, kv head, row. K and V, paged: 64 columns, 8 tokens, panel of 64
  // columns, 8-token groups of a page, head of a page; ragged: 64 columns, row, head. A box is 64 columns of a tile of rows of
  // Q, or `box` tokens of K or V: of one page with all columns, or of a ragged tensor with 64. Of an fp8 cache to be widened: all
  // columns, token, head of a page or of a ragged tensor.
  TensorMap q_map;
  TensorMap k_map;
  TensorMap v_map;
  PrefillParams base;
  int32_t slots;
  int32_t kv_heads;
  int32_t box;
  int32_t box_lanes;  // that find the boxes of one tile
  int32_t k_page;   // from page to page in k_map's last dimension
  int32_t v_page;
  bool mapped;      // the copy engine loads; else the maps are unset and threads load
};

// Warpgroups that compute, of 64 rows each, and one that loads share the registers that a block is launched with: eights for each thread
// of the 65536 there are. Who asks for more than others have given back waits for ever.
template <int kTileRows, int kOfEach = kTileRows == 128 ? 216 : 144, int kOfLoader = kTileRows == 128 ? 72 : 80>
struct WgmmaBlock {
  static constexpr int kRows = kTileRows;
  static constexpr int kComputing = kRows / 64, kThreads = (kComputing + 1) * 128;
  static constexpr int kRegisters = kOfEach, kLoaderRegisters = kOfLoader;
  static_assert(kComputing * kRegisters + kLoaderRegisters <= 65536 / kThreads / 8 * 8 * (kComputing + 1), "all that a block has");
};

// How a head dimension is cut; sizes in bytes. Of an fp8 cache (kKvBytes 1) pieces of tiles wait in a ring to be widened.
// kHeadDimVo: of V and o, where it is another than that of Q and K. kTileKeys: fewer make more stages of the same memory.
// Where steps are short three warpgroups hide each other's waits better than two; tiles of 128 keys leave them too few registers.
constexpr bool has_three(int head_dim, int kv_bytes) { return head_dim == 64 && kv_bytes == 2; }
constexpr int usual_keys(int head_dim, int kv_bytes) { return head_dim == 256 ? 64 : has_three(head_dim, kv_bytes) ? 96 : 128; }
template <int kHeadDim, int kKvBytes = 2, int kHeadDimVo = kHeadDim, int kTileKeys = usual_keys(kHeadDim, kKvBytes)>
struct WgmmaTile : WgmmaBlock<has_three(kHeadDim, kKvBytes) ? 192 : 128> {
  using WgmmaTile::WgmmaBlock::kRows;
  static constexpr int kElementBytes = 2;  // of Q, K and V as products read them
  static constexpr int kKeys = kTileKeys;
  static constexpr int kStages = (kHeadDim == 64 ? 4 : 2) * usual_keys(kHeadDim, kKvBytes) / kKeys;  // of K and V each
  static constexpr int kQStages = kHeadDim > 128 ? 1 : 2;
  static constexpr int kQBytes = kRows * kHeadDim * 2;
  static constexpr int kKBytes = kKeys * kHeadDim * 2;     // of a tile, as products read it
  static constexpr int kVBytes = kKeys * kHeadDimVo * 2;
  static constexpr int kControlBytes = 8192;    // barriers, work, lengths, addresses of rows
  static constexpr int kRawSlots = kKvBytes == 2 ? 0 : kHeadDim == 64 ? 4 : 3;
  static constexpr int kRawRows = 8192 / kHeadDim < kKeys ? 8192 / kHeadDim : kKeys;
  static constexpr int kRawBytes = kRawRows * kHeadDim;
  static constexpr int kFactorBytes = kKvBytes == 1 ? kRows * 4 : 0;
  static constexpr int kSharedBytes =
      kQStages * kQBytes + kStages * (kKBytes + kVBytes) + kControlBytes + kRawSlots * kRawBytes + kFactorBytes;
};

// The same where Q, K and V are fp8 and so are products: a row of a panel is 128 elements. V comes as it lies in memory, in a
// ring of its own, and is transposed into the tiles that products read.
template <int kHeadDim>
struct WgmmaFp8Tile : WgmmaBlock<128, 224, 56> {
  static_assert(kHeadDim == 128, "a row of Q and K, and of V as it comes, is one line of a panel");
  static constexpr int kElementBytes = 1;
  static constexpr int kKeys = 128;
  static constexpr int kStages = 4;
  static constexpr int kComingStages = 2;
  static constexpr int kQStages = 2;
  static constexpr int kQBytes = kRows * kHeadDim;
  static constexpr int kTileBytes = kKeys * kHeadDim;
  static constexpr int kKBytes = kTileBytes, kVBytes = kTileBytes;
  static constexpr int kControlBytes = 12288;
  static constexpr int kRawSlots = 0, kRawRows = 0, kRawBytes = 0;
  static constexpr int kSharedBytes = kQStages * kQBytes + (2 * kStages + kComingStages) * kTileBytes + kControlBytes;
};

struct WgmmaFp8PrefillParams : WgmmaPrefillParams {
  const float* q_scale;  // null or one: what is stored of Q is multiplied with it
};

}  // namespace opfacade
