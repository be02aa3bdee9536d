// Shared code of the attention bindings: scales, windows, query and output rows, and the workspace of a split.
#pragma once
#include <time.h>

#include "csrc/common/launch.h"
#include "csrc/paged/pool.h"

namespace opfacade {

// The device scales scores by a positive number; the sign of sm_scale goes into Q.
inline ScoreScale score_scale(double sm_scale, double soft_cap) {
  ScoreScale out{};
  out.q_transform = sm_scale < 0 ? QTransform::kNegate : sm_scale == 0 ? QTransform::kZero : QTransform::kNone;
  const double positive = sm_scale == 0 ? 1.0 : __builtin_fabs(sm_scale);
  const double scale = soft_cap > 0 ? soft_cap : positive;
  out.cap_in = soft_cap > 0 ? static_cast<float>(positive / soft_cap) : 0.f;
  out.scale = static_cast<float>(scale);
  out.log2_scale = static_cast<float>(scale * 1.4426950408889634);
  return out;
}

// Larger than any length, and far from overflow on the device.
constexpr int64_t kUnbounded = 1 << 30;

inline int32_t bounded(int64_t value) { return static_cast<int32_t>(value < kUnbounded ? value : kUnbounded); }
inline int32_t window_of(int64_t window_left) { return window_left < 0 ? kUnbounded : bounded(window_left); }

// Sets q and o of [rows, heads, head_dim] in the params of either kernel.
template <class Params>
void set_rows(Params& params, const TensorView& q, const TensorView& o) {
  params.q = q.data_ptr();
  params.q_row_stride = byte_stride(q, 0);
  params.q_head_stride = byte_stride(q, 1);
  params.q_aligned = aligned_16(q);
  params.o = o.data_ptr();
  params.o_row_stride = byte_stride(o, 0);
  params.o_head_stride = byte_stride(o, 1);
  params.o_aligned = aligned_16(o);
}

// Factors of an fp8 cache: one value, or one for each kv head at `stride`.
template <class Params>
void set_factors(Params& params, Operands& in, int32_t stride) {
  params.k_scale = in.data<float>();
  params.v_scale = in.data<float>();
  params.kv_scale_stride = stride;
}

// The scalars of every attention op: sm_scale, soft_cap and window_left.
template <class Params>
void set_scoring(Params& params, Operands& in) {
  const double sm_scale = in.real();
  params.score = score_scale(sm_scale, in.real());
  params.window_left = window_of(in.integer());
}

// A 48-bit stamp that memory is unlikely to contain: the time of the first call, times an odd constant.
inline uint64_t process_stamp() {
  static const uint64_t stamp = [] {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return (static_cast<uint64_t>(now.tv_sec) << 30 ^ static_cast<uint64_t>(now.tv_nsec)) * 0x9e3779b97f4a7c15u >> 16 | 1;
  }();
  return stamp;
}

// Tokens of one TMA box: boxes must tile both a page and a key tile, and start at multiples of eight rows.
inline int32_t box_of(int64_t page_size, int32_t tile) {
  int64_t box = page_size, rest = tile;
  while (rest != 0) {
    const int64_t next = box % rest;
    box = rest;
    rest = next;
  }
  return box % 8 == 0 ? static_cast<int32_t>(box) : 0;
}

// Assigns partial_o and partial_lse of `slots` rows to the workspace; returns the address that follows them.
template <class Params>
void* set_partials(Params& params, void* workspace, int64_t slots, int64_t head_dim) {
  params.partial_o = static_cast<float*>(workspace);
  params.partial_lse = params.partial_o + slots * head_dim;
  return params.partial_lse + slots;
}

}  // namespace opfacade
