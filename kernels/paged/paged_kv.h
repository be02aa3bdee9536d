// The key/value pool as a kernel sees it. Plain C++: device code and bindings share it.
#pragma once
#include <stdint.h>

namespace opfacade {

// One pool tensor (K or V). Strides are in bytes and arbitrary; only head_dim is contiguous, so HND and NHD are the
// same to a kernel. A ragged tensor [rows, heads, dim] is one page: page stride 0, token stride of a row.
struct PoolTensor {
  void* data;
  int64_t page_stride;
  int64_t token_stride;
  int64_t head_stride;
};

// Where the tokens of a request lie. The form is a compile-time fact (TableForm); unused fields are null or zero.
struct PageTable {
  const int32_t* indptr;   // csr: kv_indptr [batch + 1], in pages; ragged: kv_indptr [batch + 1], in rows
  const int32_t* indices;  // csr: kv_indices; block: block_table [batch, max_pages]
  const int32_t* lens;     // csr: last_page_len [batch]; block: kv_lens [batch]
  int64_t row_stride;      // block: elements between rows of block_table
  int32_t page_size;
  int32_t page_shift;      // log2(page_size), read only when pages are a power of two
  int32_t num_pages;       // of the pool, read only by kernels with safe pages
  int32_t limit;           // csr: entries of kv_indices; block: tokens of a row of block_table; ragged: rows of k and v
};

enum class TableForm { kCsr, kBlock, kRagged };
enum class SplitMode { kOff, kAuto, kFixed, kCluster, kPieces };

// What the sign of sm_scale asks of Q, so that the softmax itself always sees a positive scale.
enum class QTransform : int32_t { kNone = 0, kNegate = 1, kZero = 2 };

// Scores are scaled inside exp2 and soft-capped before it; the host prepares every constant once.
struct ScoreScale {
  float log2_scale;    // multiplies a (capped) raw score into the exponent of 2; > 0
  float scale;         // the same in natural units, for lse
  float cap_in;        // soft cap: |sm_scale| / cap, the argument factor of tanh
  QTransform q_transform;
};

}  // namespace opfacade
