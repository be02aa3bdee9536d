// Shared code of the paged and ragged prefill bindings for sm_90a: tensor maps and launch.
#pragma once
#include "csrc/attention/prefill/prefill.h"
#include "csrc/common/tensor_map.h"
#include "kernels/attention/prefill_sm90/params.h"

namespace opfacade {

// Elements in 128 bytes.
template <class C>
constexpr int64_t kPanelWidth = 128 / C::Tile::kElementBytes;
template <class C>
constexpr MapElement kMapElement = C::Tile::kElementBytes == 1 ? MapElement::kByte : C::kBf16 ? MapElement::kBf16 : MapElement::kF16;
// True if K and V are stored in the element type of the products. Otherwise raw parts of a tile are loaded and dequantised.
template <class C>
constexpr bool kAsStored = C::Tile::kElementBytes == C::kKvBytes;
template <class C>
constexpr int32_t kMostBox = kAsStored<C> ? C::Tile::kKeys : C::Tile::kRawRows;  // maximum tokens of a box
// For paged tensors, four boxes of 32 tokens arrive sooner than one of 128.
template <class C>
constexpr int32_t kMostPageBox = kAsStored<C> && kMostBox<C> > 32 ? 32 : kMostBox<C>;
template <class C>
constexpr MapElement kKvElement = C::kKvBytes == 1 ? MapElement::kByte : kMapElement<C>;

// Encodes the maps of kernels/attention/prefill_sm90/params.h.
template <class C>
bool map_queries(WgmmaPrefillParams& params) {
  const PrefillParams& p = params.base;
  return tensor_map(params.q_map, {p.q,
                                   {C::kHeadDim, C::kGroup, params.kv_heads, p.total_rows, 1},
                                   {p.q_head_stride, p.q_head_stride * C::kGroup, p.q_row_stride, 0},
                                   {C::kGroup, 1, C::kTileRows / C::kGroup, 1},
                                   kMapElement<C>});
}

// Heads and pages form one dimension, so the page stride must be a multiple of the head stride.
template <class C>
bool map_pages(TensorMap& map, int32_t& page_step, const WgmmaPrefillParams& params, const PoolTensor& pool, int64_t pages) {
  const int64_t tokens = params.base.table.page_size, heads = params.kv_heads;
  const int64_t step = heads > 1 ? pool.head_stride : pool.page_stride;
  if (params.box == 0 || (pages > 1 && (step <= 0 || pool.page_stride % step != 0))) return false;
  const int64_t per_page = pages > 1 ? pool.page_stride / step : 0;
  const int64_t places = (pages - 1) * per_page + heads;
  if (places > INT32_MAX) return false;
  page_step = static_cast<int32_t>(per_page);
  if constexpr (!kAsStored<C>)
    return tensor_map(map, {pool.data,
                            {C::kHeadDim, tokens, places, 1, 1},
                            {pool.token_stride, step, 0, 0},
                            {params.box, 1, 1, 1},
                            kKvElement<C>,
                            C::kHeadDim});
  return tensor_map(map, {pool.data,
                          {kPanelWidth<C>, 8, C::kHeadDim / kPanelWidth<C>, tokens / 8, places},
                          {pool.token_stride, 128, 8 * pool.token_stride, step},
                          {8, C::kHeadDim / kPanelWidth<C>, params.box / 8, 1},
                          kKvElement<C>});
}

template <class C>
bool map_rows(TensorMap& map, const WgmmaPrefillParams& params, const PoolTensor& pool, int64_t rows, int64_t width) {
  return tensor_map(map, {pool.data,
                          {width, rows, params.kv_heads, 1, 1},
                          {pool.token_stride, pool.head_stride, 0, 0},
                          {params.box, 1, 1, 1},
                          kKvElement<C>,
                          kAsStored<C> ? 0 : C::kHeadDim});
}

template <class C>
void set_shape(WgmmaPrefillParams& params, int32_t box) {
  params.kv_heads = params.base.heads / C::kGroup;
  params.slots = static_cast<int32_t>(int64_t{params.base.total_rows} * C::kGroup / C::kTileRows + params.base.batch);
  params.box = box;
  params.box_lanes = box == 0 ? 0 : kBoxSpan / box;
}

// fp8 products can load by TMA only. Without keys nothing is loaded.
template <class C>
void require_maps(const WgmmaPrefillParams& params, int64_t places) {
  if constexpr (C::Tile::kElementBytes == 1)
    require(params.mapped || places == 0,
            "q, k and v expected strides of whole 16 bytes, and of k and v pages a whole number of heads apart");
}

// set_paged and set_ragged set the maps and sizes that follow from params.base. If TMA cannot load, `mapped` is false and
// threads copy.
template <class C>
void set_paged(WgmmaPrefillParams& params, int64_t pages) {
  const PrefillParams& p = params.base;
  set_shape<C>(params, box_of(p.table.page_size, kMostPageBox<C>));
  params.mapped = map_pages<C>(params.k_map, params.k_page, params, p.k, pages) &&
                  map_pages<C>(params.v_map, params.v_page, params, p.v, pages) && map_queries<C>(params);
  require_maps<C>(params, pages);
}
template <class C>
void set_ragged(WgmmaPrefillParams& params, int64_t rows) {
  set_shape<C>(params, kMostBox<C>);
  params.mapped = map_rows<C>(params.k_map, params, params.base.k, rows, C::kHeadDim) &&
                  map_rows<C>(params.v_map, params, params.base.v, rows, C::kHeadDimVo) && map_queries<C>(params);
  require_maps<C>(params, rows);
}

// split=pieces: divides the workspace into partials of the parts of split tiles, two slots per CTA, and arrival counters of the
// parts.
template <class C>
void set_pieces(PrefillParams& params, void* workspace) {
  const int64_t packed = int64_t{params.total_rows} * C::kGroup, blocks = params.num_splits;
  const int64_t counters = blocks * (C::Tile::kRows / 16);
  params.slot_rows = static_cast<int32_t>(packed < C::kTileRows ? packed : C::kTileRows);
  void* rest = set_partials(params, workspace, 2 * blocks * params.slot_rows, C::kHeadDimVo);
  params.counters = static_cast<unsigned long long*>(rest);
  params.stamp = process_stamp();
}

// split=pieces: one CTA per share of the tiles, as many CTAs as the plan's workspace has slots for (num_splits).
template <class C>
Launch pieces_launch(const WgmmaPrefillParams& params) {
  require(int64_t{params.slots} * params.kv_heads <= INT32_MAX, "total_num_rows * num_qo_heads is beyond what one launch takes");
  return Launch(params.base.num_splits, C::Tile::kThreads).shared(C::Tile::kSharedBytes);
}

template <class C>
Launch wgmma_launch(const WgmmaPrefillParams& params, int device) {
  const int64_t items = int64_t{params.slots} * params.kv_heads * params.base.num_splits;
  require(items <= INT32_MAX, "total_num_rows * num_qo_heads is beyond what one launch takes");
  const int64_t blocks = sm_count(device);
  return Launch(items < blocks ? items : blocks, C::Tile::kThreads).shared(C::Tile::kSharedBytes);
}

}  // namespace opfacade
