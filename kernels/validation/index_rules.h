// Checks of one request's index entries, and their safe replacements. Plain C++ over a Warp (lanes and reductions), so that
// tests run the same code on the host with a warp of one.
//
// A wrong indptr entry belongs to the two requests that it separates. A request is judged by its own entries; only if the whole
// tensor is inconsistent (overlapping rows, more pages than the bound) must it also be disjoint from all others.
#pragma once
#include "kernels/validation/index_check_params.h"

#ifndef OPF_DEVICE
#define OPF_DEVICE __device__ __forceinline__
#endif

namespace opfacade {

enum Rule : int16_t {
  kSound = 0, kStart, kRange, kFalls, kLastPage, kPage, kLength, kNewRows, kAllPages, kOverlaps, kTooLong
};
enum Place : int16_t { kRows = 0, kKvIndptr, kLens, kPages };

struct Finding {
  int16_t rule = kSound;
  int16_t place = 0;
  int32_t value = 0;
  int64_t position = 0;
  int32_t limit = 0;
};

OPF_DEVICE bool within(int32_t value, int32_t limit) { return value >= 0 && value <= limit; }

// Checks entries r and r + 1 of an indptr. Elements past the last entry belong to no request.
OPF_DEVICE Finding judge_entries(const int32_t* v, int r, int32_t limit, Place place) {
  const int32_t low = v[r], high = v[r + 1];
  if (r == 0 && low != 0) return {kStart, place, low, 0, 0};
  if (!within(low, limit)) return {kRange, place, low, r, limit};
  if (!within(high, limit)) return {kRange, place, high, r + 1, limit};
  if (high < low) return {kFalls, place, high, r + 1, low};
  return {};
}

// Checks that no other request overlaps [v[r], v[r + 1]). Needed only if the indptr is inconsistent.
template <class Warp>
OPF_DEVICE Finding judge_apart(const int32_t* v, int batch, int r, int32_t limit, Place place) {
  int32_t before = 0, after = limit;
  for (int i = Warp::lane(); i <= batch; i += Warp::kLanes) {
    if (!within(v[i], limit)) continue;
    if (i < r && v[i] > before) before = v[i];
    if (i > r + 1 && v[i] < after) after = v[i];
  }
  before = Warp::max(before);
  after = Warp::min(after);
  if (v[r] < before) return {kFalls, place, v[r], r, before};
  if (v[r + 1] > after) return {kOverlaps, place, v[r + 1], r + 1, after};
  return {};
}

// True if requests must be checked for overlap. Rows: if any entry is wrong. Pages: if their total exceeds the limit.
template <class Warp>
OPF_DEVICE bool crowded(const int32_t* v, int batch, int32_t limit, Place place) {
  int64_t sum = 0;
  int wrong = 0;
  for (int r = Warp::lane(); r < batch; r += Warp::kLanes) {
    const bool sound = judge_entries(v, r, limit, place).rule == kSound;
    sum += sound ? v[r + 1] - v[r] : 0;
    wrong |= !sound;
  }
  return Warp::sum(sum) > limit || (place == kRows && Warp::max(wrong) != 0);
}

template <class Warp>
OPF_DEVICE Finding judge_indptr(const int32_t* v, int batch, int r, int32_t limit, Place place) {
  const Finding own = judge_entries(v, r, limit, place);
  if (own.rule != kSound || !crowded<Warp>(v, batch, limit, place)) return own;
  return judge_apart<Warp>(v, batch, r, limit, place);
}

OPF_DEVICE int64_t pages_of_length(const IndexTables& t, int32_t length) {
  return (static_cast<int64_t>(length) + t.page_size - 1) / t.page_size;
}

OPF_DEVICE int32_t longest(const IndexTables& t) {
  const int64_t most = t.width * t.page_size;
  return most > t.max_len ? t.max_len : static_cast<int32_t>(most);
}

// kv_lens: within a row of the table, and within the bound on the pages of all requests up to this one.
template <class Warp>
OPF_DEVICE Finding judge_length(const IndexTables& t, int r) {
  if (!within(t.lens[r], longest(t))) return {kLength, kLens, t.lens[r], r, longest(t)};
  int64_t sum = 0;
  for (int i = Warp::lane(); i <= r; i += Warp::kLanes)
    if (within(t.lens[i], longest(t))) sum += pages_of_length(t, t.lens[i]);
  sum = Warp::sum(sum);
  if (sum <= t.kv_limit) return {};
  return {kAllPages, kLens, static_cast<int32_t>(sum > INT32_MAX ? INT32_MAX : sum), r, t.kv_limit};
}

// The pages of a request: start and count.
struct PageSpan {
  int64_t first;
  int64_t count;
  int64_t offset;  // origin of reported positions: 0 in kv_indices, the row's start in block_table
};

OPF_DEVICE PageSpan span_of(const IndexTables& t, int r) {
  if (t.kv_indptr != nullptr) return {t.kv_indptr[r], t.kv_indptr[r + 1] - t.kv_indptr[r], 0};
  return {r * t.row_stride, pages_of_length(t, t.lens[r]), r * t.row_stride};
}

OPF_DEVICE bool is_page(const IndexTables& t, int32_t page) { return page >= 0 && page < t.num_pages; }

// Rows of such a page are deliberately not stored: the caller passed kNowhere.
OPF_DEVICE bool is_nowhere(const IndexTables& t, int32_t page) { return t.appends && page == kNowhere; }

OPF_DEVICE bool is_sound(const IndexTables& t, int32_t page) { return is_page(t, page) || is_nowhere(t, page); }

// unused: leading pages that are neither read nor written; their ids may have any value.
template <class Warp>
OPF_DEVICE Finding judge_pages(const IndexTables& t, const PageSpan& span, int64_t unused) {
  int64_t wrong = INT64_MAX;
  for (int64_t i = unused + Warp::lane(); i < span.count && wrong == INT64_MAX; i += Warp::kLanes)
    if (!is_sound(t, t.pages[span.first + i])) wrong = span.first + i;
  wrong = Warp::min(wrong);
  if (wrong == INT64_MAX) return {};
  return {kPage, kPages, t.pages[wrong], wrong - span.offset, t.num_pages};
}

// Length of a request with valid entries.
OPF_DEVICE int64_t length_of(const IndexTables& t, int r) {
  if (t.pages == nullptr) return t.kv_indptr[r + 1] - t.kv_indptr[r];
  if (t.kv_indptr == nullptr) return t.lens[r];
  const int64_t count = t.kv_indptr[r + 1] - t.kv_indptr[r];
  return count == 0 ? 0 : (count - 1) * t.page_size + t.lens[r];
}

// First key that a row of the request sees, or the position of the first new row; the length if there is none. Entries must be
// valid.
OPF_DEVICE int64_t first_used(const IndexTables& t, int r) {
  const int64_t length = length_of(t, r), rows = t.rows == nullptr ? 1 : t.rows[r + 1] - t.rows[r];
  if (rows == 0) return length;
  const int64_t first = t.appends ? length - rows : t.window_left < 0 ? 0 : length - rows - t.window_left;
  return first > 0 ? first : 0;
}

OPF_DEVICE int64_t unused_pages(const IndexTables& t, int r) {
  const int64_t first = first_used(t, r);
  return first == length_of(t, r) ? span_of(t, r).count : first / t.page_size;
}

// First wrong entry among the keys of a request.
template <class Warp>
OPF_DEVICE Finding judge_keys(const IndexTables& t, int r) {
  Finding found;
  if (t.kv_indptr != nullptr) {
    found = judge_indptr<Warp>(t.kv_indptr, t.batch, r, t.kv_limit, kKvIndptr);
    if (found.rule != kSound) return found;
    const bool any = t.pages != nullptr && t.kv_indptr[r + 1] > t.kv_indptr[r];
    if (any && (t.lens[r] < 1 || t.lens[r] > t.page_size)) return {kLastPage, kLens, t.lens[r], r, t.page_size};
    const int64_t length = length_of(t, r);
    if (length > t.max_len) return {kTooLong, kKvIndptr, static_cast<int32_t>(length), r + 1, t.max_len};
  } else if (t.lens != nullptr) {
    found = judge_length<Warp>(t, r);
    if (found.rule != kSound) return found;
  }
  return t.pages == nullptr ? found : judge_pages<Warp>(t, span_of(t, r), unused_pages(t, r));
}

// First wrong entry of a request.
template <class Warp>
OPF_DEVICE Finding judge(const IndexTables& t, int r) {
  Finding found;
  if (t.rows != nullptr) found = judge_indptr<Warp>(t.rows, t.batch, r, t.total_rows, kRows);
  if (found.rule == kSound) found = judge_keys<Warp>(t, r);
  if (found.rule != kSound || !t.appends) return found;
  const int64_t length = length_of(t, r);
  if (t.rows[r + 1] - t.rows[r] > length) return {kNewRows, kRows, t.rows[r + 1], r + 1, static_cast<int32_t>(length)};
  return found;
}

// Entry i of an indptr of rows, made monotonic, because a kernel searches it. Both entries of a valid, disjoint request stay
// unchanged.
template <class Warp>
OPF_DEVICE int32_t safe_row(const IndexTables& t, int i) {
  int32_t most = 0;
  for (int j = Warp::lane(); j <= i; j += Warp::kLanes)
    if (j > 0 && within(t.rows[j], t.total_rows) && t.rows[j] > most) most = t.rows[j];
  return Warp::max(most);
}

OPF_DEVICE int32_t safe_entry(int32_t value, int32_t limit) { return within(value, limit) ? value : 0; }

// Writes the safe tables of request r from its verdict: entry r of each indptr, and for the last request also the last entry.
template <class Warp>
OPF_DEVICE void make_safe(const IndexTables& t, const SafeTables& safe, int r, bool sound) {
  const int entries = r == t.batch - 1 ? 2 : 1;
  for (int i = r; i < r + entries; ++i) {
    const int32_t row = t.rows != nullptr ? safe_row<Warp>(t, i) : 0;
    if (Warp::lane() != 0) continue;
    if (t.rows != nullptr) safe.rows[i] = row;
    if (t.kv_indptr != nullptr) safe.kv_indptr[i] = safe_entry(t.kv_indptr[i], t.kv_limit);
  }
  if (t.lens == nullptr) return;
  int32_t length = t.lens[r];
  if (!sound) {
    // csr: kernels compute (pages - 1) * page_size + last_page_len, and take a negative last_page_len for no keys.
    length = 0;
    if (t.kv_indptr != nullptr) {
      const int64_t count = safe_entry(t.kv_indptr[r + 1], t.kv_limit) - safe_entry(t.kv_indptr[r], t.kv_limit);
      length = count > 0 ? static_cast<int32_t>(-(count - 1) * t.page_size) : 0;
    }
  }
  if (Warp::lane() == 0) safe.lens[r] = length;
  if (!sound) return;
  const PageSpan span = span_of(t, r);
  const int64_t to = t.kv_indptr != nullptr ? span.first : r * t.width;
  for (int64_t i = Warp::lane(); i < span.count; i += Warp::kLanes) {
    const int32_t page = t.pages[span.first + i];
    safe.pages[to + i] = is_sound(t, page) ? page : 0;
  }
}

}  // namespace opfacade
