// Operands and tensor maps of latent decode.
#pragma once
#include "csrc/attention/attention.h"
#include "csrc/common/tensor_map.h"
#include "kernels/mla/params.h"

namespace opfacade {

// Views a latent pool [pages, page_size, columns] as a pool with one head.
inline PoolTensor latent_pool(const TensorView& view) {
  return {view.data_ptr(), byte_stride(view, 0), byte_stride(view, 1), 0};
}

inline void set_latent_queries(MlaParams& params, const TensorView& q_nope, const TensorView& q_pe, const TensorView& o) {
  set_rows(params.base, q_nope, o);
  params.q_pe = q_pe.data_ptr();
  params.q_pe_row_stride = byte_stride(q_pe, 0);
  params.q_pe_head_stride = byte_stride(q_pe, 1);
  params.q_pe_aligned = aligned_16(q_pe);
}

// Encodes the maps of kernels/mla/params.h; false if TMA cannot load the tensor.
inline bool map_latent(TensorMap& map, const MlaParams& params, const PoolTensor& pool, int64_t pages, int panels, bool bf16) {
  return tensor_map(map, {pool.data,
                          {64, 8, panels, params.base.table.page_size / 8, pages},
                          {pool.token_stride, 128, 8 * pool.token_stride, pool.page_stride},
                          {8, panels, params.box / 8, 1},
                          bf16 ? MapElement::kBf16 : MapElement::kF16});
}
// The query rows of a call: heads per row, rows of all requests.
struct LatentQueries {
  int64_t heads;
  int64_t rows;
  QueryBox box;
  bool bf16;
};
inline bool map_heads(TensorMap& map, const LatentQueries& queries, const void* q, int64_t columns, int64_t row_stride,
                      int64_t head_stride) {
  return queries.box.heads != 0 && tensor_map(map, {q,
                                                    {columns, queries.heads, queries.rows, 1, 1},
                                                    {head_stride, row_stride, 0, 0},
                                                    {queries.box.heads, queries.box.rows, 1, 1},
                                                    queries.bf16 ? MapElement::kBf16 : MapElement::kF16});
}
inline void set_maps(MlaParams& params, int64_t pages, const LatentQueries& queries) {
  const bool bf16 = queries.bf16;
  const DecodeParams& p = params.base;
  params.box = box_of(p.table.page_size, kMlaKeys);
  params.mapped = params.box != 0 && map_latent(params.ckv_map, params, p.k, pages, kMlaLatent / 64, bf16) &&
                  map_latent(params.kpe_map, params, p.v, pages, 1, bf16) &&
                  map_heads(params.q_map, queries, p.q, kMlaLatent, p.q_row_stride, p.q_head_stride) &&
                  map_heads(params.q_pe_map, queries, params.q_pe, kMlaRope, params.q_pe_row_stride, params.q_pe_head_stride);
}

// Workspace: partials, then the split requests.
inline void set_latent_partials(MlaParams& params, void* workspace, int64_t head_blocks, int64_t rows) {
  const int64_t slots = head_blocks * params.base.slots * rows;
  params.split_requests = static_cast<SplitRequest*>(set_partials(params.base, workspace, slots, kMlaLatent));
}

// Grid of the merge: CTAs for the rows times slices of units. With more slices, each slice has fewer CTAs.
inline Dim3 merge_grid(int64_t units, int64_t heads) {
  const int64_t slices = (units - 1) / kMlaMergeSlice + 1, most = 65535;
  const int64_t blocks = units * heads < kMlaMergeBlocks ? units * heads : kMlaMergeBlocks;
  return {slices < blocks ? blocks / slices : 1, slices < most ? slices : most};
}

}  // namespace opfacade
