// Parameters of a merge of attention states, shared by the kernel and its binding. Launch: grid ceil(rows * heads / (4 *
// rows_of_a_warp * rows_of_a_thread)), kMergeThreads threads per CTA. Tensors are contiguous. o and lse may alias those of
// state 0.
#pragma once
#include <stdint.h>

namespace opfacade {

struct MergeStatesParams {
  const void* states_o;     // [states, rows, heads, head_dim]
  const float* states_lse;  // [states, rows, heads]
  void* o;                  // [rows, heads, head_dim]
  float* lse;               // [rows, heads]
  int64_t rows;             // rows * heads
  int32_t states;
};

constexpr int kMostListed = 8;
// States in separate tensors, each [rows, heads, head_dim] or [rows, heads]; states_o and states_lse are null.
struct MergeListParams : MergeStatesParams {
  const void* list_o[kMostListed];
  const float* list_lse[kMostListed];
};

// Each row has its own number of states: states_o [states, heads, head_dim], states_lse [states, heads].
struct MergeRaggedParams : MergeStatesParams {
  const int32_t* indptr;  // [rows / heads + 1]
  int32_t heads;
};

// The number of elements in a lane's chunk: up to 16 bytes, and a divisor of the row length.
constexpr int merge_piece(int head_dim, int elem_bytes) {
  int piece = 16 / elem_bytes;
  while (head_dim % piece != 0) piece /= 2;
  return piece;
}

// The number of lanes that share a row: a power of two, at least 8, with one chunk per lane if possible.
constexpr int lanes_of_a_row(int head_dim, int elem_bytes) {
  int lanes = 8;
  while (lanes < 32 && lanes * merge_piece(head_dim, elem_bytes) < head_dim) lanes *= 2;
  return lanes;
}

constexpr int rows_of_a_warp(int head_dim, int elem_bytes) { return 32 / lanes_of_a_row(head_dim, elem_bytes); }

// True if each lane has at most one chunk of a row.
constexpr bool has_whole_rows(int head_dim, int elem_bytes) {
  return lanes_of_a_row(head_dim, elem_bytes) * merge_piece(head_dim, elem_bytes) >= head_dim;
}

constexpr int kMergeThreads = 128;
// The number of rows per thread: with few states, one row would have too few bytes in flight.
constexpr int rows_of_a_thread(int64_t states, int head_dim, int elem_bytes) {
  return states > 3 || !has_whole_rows(head_dim, elem_bytes) ? 1 : states == 3 ? 2 : 3;
}

}  // namespace opfacade
