// Parameters and results of the index check, shared by the kernel, its binding and the host's reader. Launch: grid ceil(batch /
// 4), 128 threads per CTA; one warp per request.
#pragma once
#include <stdint.h>

namespace opfacade {

constexpr int kRecords = 64;
constexpr int32_t kNowhere = -(1 << 30);  // page number of new rows that are not stored; NOWHERE of core/request_tables.py

// One wrong element; opfacade/validation/rules.py has the messages. sequence is written last, 1 for the first record.
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

// Pinned host memory: the device writes records, the host writes the number it has read.
struct IndexRing {
  IndexRecord records[kRecords];
  uint32_t consumed;
};

// Device memory, initially zero.
struct IndexState {
  uint32_t reserved;  // records claimed so far
  uint32_t calls;     // completed launches
  uint32_t done;      // completed CTAs of this launch
};

// The tables of one call; a pointer is null if the form of the table does not use it.
struct IndexTables {
  const int32_t* rows;       // q_indptr or append_indptr [batch + 1]
  const int32_t* kv_indptr;  // csr and ragged [batch + 1]
  const int32_t* lens;       // last_page_len or kv_lens [batch]
  const int32_t* pages;      // kv_indices or block_table [batch, width]
  int64_t row_stride;        // block: elements between rows
  int64_t width;             // block: pages per row
  int32_t kv_limit;          // csr: bound of kv_indptr; ragged: rows of k; block: pages of all requests
  int32_t num_pages;
  int32_t page_size;
  int32_t total_rows;
  int32_t window_left;       // attention only; below 0: no window
  int32_t batch;
  int32_t max_len;           // bound of the tokens of one request
  bool appends;
};

// Copies of the tables in which every wrong request is empty; block rows have stride width.
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
