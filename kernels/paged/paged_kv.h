// The KV pool as kernels see it. Plain C++, shared by device code and bindings.
#pragma once
#include <stdint.h>

namespace opfacade {

// One pool tensor (K or V). Strides are in bytes; only head_dim is contiguous, so HND and NHD are the same to a kernel. A
// ragged tensor [rows, heads, dim] is one page: page stride 0, token stride of a row.
struct PoolTensor {
  void* data;
  int64_t page_stride;
  int64_t token_stride;
  int64_t head_stride;
};

// Locations of a request's tokens. TableForm fixes the form at compile time; unused fields are null or zero.
struct PageTable {
  const int32_t* indptr;   // csr: kv_indptr [batch + 1], in pages; ragged: kv_indptr [batch + 1], in rows
  const int32_t* indices;  // csr: kv_indices; block: block_table [batch, max_pages]
  const int32_t* lens;     // csr: last_page_len [batch]; block: kv_lens [batch]
  int64_t row_stride;      // block: elements between rows of block_table
  int32_t page_size;
  int32_t page_shift;      // log2(page_size), read only if page sizes are powers of two
  int32_t num_pages;       // pages of the pool, read only if kSafePages
  int32_t limit;           // csr: entries of kv_indices; block: tokens of a block_table row; ragged: rows of k and v
};

enum class TableForm { kCsr, kBlock, kRagged };
enum class SplitMode { kOff, kAuto, kFixed, kCluster, kPieces };

// Transform of Q for the sign of sm_scale, so that the softmax scale is always positive.
enum class QTransform : int32_t { kNone = 0, kNegate = 1, kZero = 2 };

// Scores are scaled inside exp2, after the soft cap. The host computes the constants.
struct ScoreScale {
  float log2_scale;    // factor from a raw (or capped) score to the exponent of 2; > 0
  float scale;         // the same factor in natural units, for lse
  float cap_in;        // |sm_scale| / cap: the factor in the argument of tanh
  QTransform q_transform;
};

}  // namespace opfacade
