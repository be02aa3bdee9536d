// What the index check is told, and what it leaves behind; shared by the kernel, its binding and the host's reader.
// Launch: grid ceil(batch / 4), block 128; a warp takes a request.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kRecords = 64;

// One wrong element: opfacade/validation/rules.py has the words. sequence is written last: 1 for the first record.
struct IndexRecord {
  uint32_t sequence;
  int16_t rule;
  int16_t place;
  int32_t request;
  int32_t value;
  int64_t position;
  int32_t limit;
  uint32_t call;
};
static_assert(sizeof(IndexRecord) == 32, "the host reads records of 32 bytes");

// Pinned host memory: the device writes records, the host writes how many it has read.
struct IndexRing {
  IndexRecord records[kRecords];
  uint32_t consumed;
};

// Device memory, zero at first.
struct IndexState {
  uint32_t reserved;  // records claimed so far
  uint32_t calls;     // launches that are over
  uint32_t done;      // blocks of this launch that are over
};

// The tables of one call; a pointer that a form has not is null.
struct IndexTables {
  const int32_t* rows;       // q_indptr or append_indptr [batch + 1]
  const int32_t* kv_indptr;  // csr and ragged [batch + 1]
  const int32_t* lens;       // last_page_len or kv_lens [batch]
  const int32_t* pages;      // kv_indices or block_table [batch, width]
  int64_t row_stride;        // block: elements between rows
  int64_t width;             // block: pages of a row
  int32_t kv_limit;          // csr: most that kv_indptr may say; ragged: rows of k; block: pages of all requests
  int32_t num_pages;
  int32_t page_size;
  int32_t total_rows;
  int32_t window_left;       // of an attention; below 0: none
  int32_t batch;
  int32_t max_len;           // tokens of one request
  bool appends;
};

// The same tables with every wrong request made empty, so that no kernel is led astray; block rows have stride width.
struct SafeTables {
  int32_t* rows;
  int32_t* kv_indptr;
  int32_t* lens;
  int32_t* pages;
};

struct IndexCheckParams {
  IndexTables tables;
  SafeTables safe;
  IndexState* state;
  IndexRing* ring;
};

}  // namespace opfacade
