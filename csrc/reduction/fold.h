// Axes of a fold on the host, for each call: row axes of extent 1 are dropped, contiguous neighbours are merged, and the common
// properties of folded axes are determined. One binary serves every layout, and every shape of its class.
#pragma once
#include "csrc/common/launch.h"
#include "csrc/common/operands.h"
#include "csrc/elementwise/map.h"
#include "kernels/reduction/flat_params.h"
#include "kernels/reduction/fold_params.h"

namespace opfacade {

// Number of CTAs that share a row which is cut into parts: a power of two, at most `most`, and at most one per part. It is not
// doubled once all rows together have more CTAs than the GPU has SMs.
inline int32_t ctas_of_parts(int64_t rows, int64_t parts, int32_t most, int32_t sms) {
  int32_t found = 1;
  while (2 * found <= most && 2 * found <= parts && rows * found <= sms) found *= 2;
  return found;
}

// rows: folded at once by a CTA. bytes: of the widest operand in a CTA, about. ctas: per SM, at least.
struct FlatLimits {
  int64_t rows, bytes, ctas, sms;
};
// Rows per CTA if rows are in shared memory: a multiple of the rows that are folded at once.
inline int32_t rows_of_flat_cta(int64_t rows, int64_t elements, const int* sizes, int operands, FlatLimits limits) {
  int64_t widest = 1;
  for (int k = 0; k < operands; ++k) widest = sizes[k] > widest ? sizes[k] : widest;
  const int64_t fit = limits.bytes / (limits.rows * (elements + 1) * widest);
  const int64_t share = rows / (limits.ctas * limits.sms * limits.rows);
  const int64_t found = fit < share ? fit : share;
  return static_cast<int32_t>(limits.rows * (found < 1 ? 1 : found));
}

// Numbers of axes: of the program, of the kept ones, and of those of a group, which are the last folded ones.
struct FoldRanks {
  int all, kept, inner;
};

template <class Params, int kOperands>
class FoldAxes {
 public:
  // order: the axes of the program, the kept ones first.
  FoldAxes(Params& p, FoldRanks ranks, const int* order) : p_(p), ranks_(ranks) {
    p.rows = p.segments = p.elements = 1;
    for (int place = 0; place < ranks.all; ++place) {
      place_[order[place]] = place;
      p.extent[place] = p.size[order[place]];
      if (place < ranks.kept) p.rows *= p.extent[place];
      else if (place < ranks.all - ranks.inner) p.segments *= static_cast<int32_t>(p.extent[place]);
      else p.elements *= static_cast<int32_t>(p.extent[place]);
    }
    p.kept = ranks.kept, p.rank = ranks.all;
  }

  void set(int operand, int axis, int64_t stride) { p_.stride[operand][place_[axis]] = stride; }
  void set_own(int operand, int axis, int64_t stride) { p_.stride[operand][axis] = stride; }

  // Merges row axes if no coordinates are needed, and prepares divisors. columns: how many kept axes, the innermost ones, are
  // columns; at least one of them stays, and none is merged with a row axis. fixed: the first axes, which are not changed.
  void finish(bool merges, int columns = 0, int fixed = 0) {
    if (merges) merge(p_.num_valid == nullptr ? fixed : 1, p_.kept - columns);
    if (merges && p_.kept == 0) insert();
    for (int axis = 0; axis < p_.rank; ++axis) p_.divider[axis] = divider_of(p_.extent[axis]);
    for (int k = 0; k < kOperands; ++k) p_.span[k] = span_of(k);
  }

  // Whether in every tensor groups have a fixed step and the elements of a group are contiguous. level of each operand: 0 has a
  // value per element, 1 per group, 2 per row.
  bool is_dense(const int* level) {
    const int inner = p_.rank - ranks_.inner;
    for (int k = 0; k < kOperands; ++k) {
      if (level[k] == 0 && !steps(k, inner, p_.rank, 1, nullptr)) return false;
      if (level[k] <= 1 && !steps(k, p_.kept, inner, 0, &p_.step[k])) return false;
    }
    return true;
  }

  // Whether `rows` rows of each operand with a nonzero size are contiguous.
  bool follow_each_other(const int* size, int64_t rows) const {
    if (rows == 1) return true;
    for (int k = 0; k < kOperands; ++k)
      if (size[k] != 0 && p_.extent[0] > 1 && p_.stride[k][0] != p_.elements) return false;
    return true;
  }

  // Whether every tensor with folded elements has a fixed step between them; stores the step.
  bool steps_alike(const int* level) {
    for (int k = 0; k < kOperands; ++k)
      if (level[k] == 0 && !steps(k, p_.kept, p_.rank, 0, &p_.step[k])) return false;
    return true;
  }

  // Whether folded elements are contiguous in every tensor that has them.
  bool steps_by_one(const int* level) const {
    for (int k = 0; k < kOperands; ++k)
      if (level[k] == 0 && !steps(k, p_.kept, p_.rank, 1, nullptr)) return false;
    return true;
  }

  // Whether every tensor has a fixed step between folded elements, and contiguous columns. level of each operand: 0 has a value
  // per element, 1 per folded element but not per column, 2 not per folded element.
  bool is_dense_in_columns(const int* level) {
    const int last = p_.kept - 1;
    for (int k = 0; k < kOperands; ++k) {
      if (level[k] <= 1 && !steps(k, p_.kept, p_.rank, 0, &p_.step[k])) return false;
      if (level[k] == 0 && p_.extent[last] > 1 && p_.stride[k][last] != 1) return false;
    }
    return true;
  }
  bool is_wide_in_columns(const int* level, const int* size, int count) const {
    const int last = p_.kept - 1;
    return p_.extent[last] % count == 0 && is_aligned(level, size, count, last);
  }

  // Whether vectors of `count` elements are whole and aligned in every tensor with a value per element; false if count is 0.
  bool is_wide(const int* level, const int* size, int count) const {
    return count != 0 && p_.elements % count == 0 && is_aligned(level, size, count, p_.kept);
  }

 private:
  // Number of elements from the first one in memory to the last one.
  int64_t span_of(int operand) const {
    int64_t last = 0;
    for (int axis = 0; axis < p_.rank; ++axis) {
      if (p_.extent[axis] == 0) return 0;
      last += (p_.extent[axis] - 1) * p_.stride[operand][axis];
    }
    return last + 1;
  }

  // Whether vectors are aligned, along the first `axes` axes and from segment to segment, in every tensor with a value per
  // element.
  bool is_aligned(const int* level, const int* size, int count, int axes) const {
    for (int k = 0; k < kOperands; ++k) {
      if (level[k] != 0) continue;
      const int64_t bytes = int64_t{count} * size[k], access = bytes < 16 ? bytes : 16;
      if (reinterpret_cast<uintptr_t>(p_.operand[k]) % access != 0 || p_.step[k] * size[k] % access != 0) return false;
      for (int axis = 0; axis < axes; ++axis)
        if (p_.extent[axis] > 1 && p_.stride[k][axis] * size[k] % access != 0) return false;
    }
    return true;
  }

  // Whether a fixed step leads through the axes first .. last - 1. wanted: the required step, or 0 for any; found: receives the
  // step.
  bool steps(int operand, int first, int last, int64_t wanted, int64_t* found) const {
    int64_t step = 0, next = 0;
    bool innermost = true;
    for (int axis = last - 1; axis >= first; --axis) {
      if (p_.extent[axis] == 1) continue;
      const int64_t own = p_.stride[operand][axis];
      if (innermost ? wanted != 0 && own != wanted : own != next) return false;
      if (innermost) step = own, innermost = false;
      next = own * p_.extent[axis];
    }
    if (found != nullptr) *found = step;
    return true;
  }

  // Merges row axes. Axes before `apart` are not merged with those from `apart` on, of which at least one stays.
  void merge(int fixed, int apart) {
    int kept = 0, begin = 0;
    for (int axis = 0; axis < p_.kept; ++axis) {
      if (axis == apart) begin = kept;
      const bool only = axis >= apart && axis == p_.kept - 1 && kept == begin;
      if (p_.extent[axis] == 1 && axis >= fixed && !only) continue;
      if (kept > fixed && kept > begin && together(kept - 1, axis)) {
        p_.extent[kept - 1] *= p_.extent[axis];
        for (int k = 0; k < kOperands; ++k) p_.stride[k][kept - 1] = p_.stride[k][axis];
      } else {
        move(axis, kept++);
      }
    }
    for (int axis = p_.kept; axis < p_.rank; ++axis) move(axis, kept + axis - p_.kept);
    p_.rank -= p_.kept - kept, p_.kept = kept;
  }
  bool together(int outer, int inner) const {
    for (int k = 0; k < kOperands; ++k)
      if (p_.stride[k][outer] != p_.stride[k][inner] * p_.extent[inner]) return false;
    return true;
  }
  void move(int from, int to) {
    p_.extent[to] = p_.extent[from];
    for (int k = 0; k < kOperands; ++k) p_.stride[k][to] = p_.stride[k][from];
  }
  // Inserts an axis of one entry: a single row has no axes.
  void insert() {
    if (p_.rank == kMapAxes) return;
    for (int axis = p_.rank; axis > 0; --axis) move(axis - 1, axis);
    p_.extent[0] = 1, p_.kept = 1, ++p_.rank;
    for (int k = 0; k < kOperands; ++k) p_.stride[k][0] = 0;
  }

  Params& p_;
  const FoldRanks ranks_;
  int place_[kMapAxes] = {};
};

}  // namespace opfacade
