"""The index rules: the device's, compiled for a warp of one lane, against the host's; and the replacement tables."""

import ctypes
import subprocess
from itertools import pairwise

import pytest
import torch

from opfacade import env, jit
from opfacade.validation import host
from opfacade.validation.rules import ALL_PAGES, ALLOWED, FALLS, OVERLAPS, Finding, tables_of
from tests.support.index_corruption import PROBLEMS, case, touched

SHIM = r"""
#define OPF_DEVICE static inline
#include "kernels/validation/index_rules.h"
struct HostWarp {
  static constexpr int kLanes = 1;
  static int lane() { return 0; }
  template <class T> static T max(T x) { return x; }
  template <class T> static T min(T x) { return x; }
  template <class T> static T sum(T x) { return x; }
};
using namespace opfacade;
extern "C" int32_t judge_all(const IndexTables* t, const SafeTables* safe, IndexRecord* found) {
  int32_t count = 0;
  for (int r = 0; r < t->batch; ++r) {
    const Finding f = judge<HostWarp>(*t, r);
    make_safe<HostWarp>(*t, *safe, r, f.rule == kSound);
    if (f.rule != kSound) found[count++] = {0, f.rule, f.place, r, f.value, f.position, f.limit, 0};
  }
  return count;
}
"""


class CTables(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "kv_indptr", "lens", "pages")),
        *((name, ctypes.c_int64) for name in ("row_stride", "width")),
        *(
            (name, ctypes.c_int32)
            for name in ("kv_limit", "num_pages", "page_size", "total_rows", "window_left", "batch", "max_len")
        ),
        ("appends", ctypes.c_bool),
    )


class CSafe(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("rows", "kv_indptr", "lens", "pages"))


@pytest.fixture(scope="module")
def judge_all(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules")
    (folder / "shim.cc").write_text(SHIM)
    command = [env.cxx(), "-std=c++17", "-O1", "-fsanitize=undefined", "-fno-sanitize-recover", "-Wall", "-Wextra", "-Werror"]
    paths = ["-shared", "-fPIC", "-I", str(jit.source_root()), str(folder / "shim.cc"), "-o", str(folder / "shim.so")]
    subprocess.run([*command, *paths], check=True)
    return ctypes.CDLL(str(folder / "shim.so")).judge_all


def on_device(judge_all, tables, args):
    """(findings, safe tables) as the device would leave them."""
    from opfacade.validation.device import Record

    given = [getattr(args, name) if name else None for name in tables.names]
    safe = [None if t is None else torch.full_like(t, 12345678) for t in given]
    pointers = [None if t is None else t.data_ptr() for t in given]
    width = given[3].shape[1] if tables.block else 0
    limit = min(tables.limit, given[3].numel()) if tables.pages and not tables.block else tables.limit
    rows = (tables.total_rows, tables.window, tables.requests, tables.max_len, tables.appends)
    sizes = (limit, tables.num_pages, tables.page_tokens, *rows)
    c_tables = CTables(*pointers, width, width, *sizes)
    c_safe = CSafe(*(None if t is None else t.data_ptr() for t in safe))
    records = (Record * tables.requests)()
    count = judge_all(ctypes.byref(c_tables), ctypes.byref(c_safe), records)
    return [Finding(r.rule, r.place, r.request, r.position, r.value, r.limit) for r in records[:count]], safe


def test_the_record_is_read_as_it_is_written():
    from opfacade.validation.device import Record, Ring

    assert (ctypes.sizeof(Record), ctypes.sizeof(Ring)) == (32, 64 * 32 + 8)


def test_every_rule_has_words():
    text = (jit.source_root() / "kernels/validation/index_rules.h").read_text()
    body = text.partition("enum Rule")[2].partition("};")[0]
    assert len(ALLOWED) == body.count("k") - 1
    assert sorted(ALLOWED) == list(range(1, len(ALLOWED) + 1))


@pytest.mark.parametrize("descriptor", PROBLEMS, ids=lambda d: f"{d.op}-{getattr(d, 'page_table', 'ragged')}")
def test_sound_tables_pass_and_stay_as_they_are(judge_all, descriptor):
    from opfacade.testing import inputs

    tables = tables_of(descriptor)
    for seed in range(4):
        args = inputs.make_args(descriptor, seed=seed)
        found, safe = on_device(judge_all, tables, args)
        assert found == host.findings(tables, args) == []
        whole = [(name, copy) for name, copy in zip(tables.names, safe, strict=True) if name and name != tables.pages]
        assert all(torch.equal(getattr(args, name), copy) for name, copy in whole)


@pytest.mark.parametrize("descriptor", PROBLEMS[:6], ids=lambda d: f"{d.op}-{getattr(d, 'page_table', 'ragged')}")
def test_a_request_one_token_too_long_is_found_on_the_device_too(judge_all, descriptor):
    from opfacade.testing import inputs

    lengths = inputs.DrawnLengths(kv=[13, 0, 25, 7, 25, 1][: descriptor.batch_size])
    args = inputs.make_args(descriptor, 1, lengths=lengths)
    for most, wrong in ((25, []), (24, [2, 4])):
        bounded = type(descriptor)(**{**dict(descriptor), "max_kv_len": most})
        found, _ = on_device(judge_all, tables_of(bounded), args)
        assert found == host.findings(tables_of(bounded), args)
        assert [(f.request, f.value, f.limit) for f in found] == [(request, 25, most) for request in wrong]


def ranges(tables, rows, keys):
    """Each request's ((rows), pages, length) as the kernels compute them."""
    kv_indptr, lens, pages = keys
    for r in range(tables.requests):
        mine = (int(rows[r]), int(rows[r + 1])) if rows is not None else None
        if pages is None:
            yield mine, [], (int(kv_indptr[r]), int(kv_indptr[r + 1]))
            continue
        if tables.block:
            length, listed = int(lens[r]), pages[r]
        else:
            count = int(kv_indptr[r + 1]) - int(kv_indptr[r])
            length = (count - 1) * tables.page_tokens + int(lens[r]) if count > 0 else 0
            listed = pages[int(kv_indptr[r]) :]
        yield mine, listed[: -(-length // tables.page_tokens)].tolist(), length


def check_safe(tables, safe, found, corrupted):
    """Nothing points out of bounds, a wrong request is empty, and requests that a change does not concern are unchanged."""
    now = list(ranges(tables, safe[0], safe[1:]))
    before = [getattr(corrupted.sound, name) if name else None for name in tables.names]
    was = list(ranges(tables, before[0], before[1:]))
    if tables.rows:
        assert int(safe[0][0]) == 0
        assert all(a <= b for a, b in pairwise(safe[0].tolist()))
        assert int(safe[0][-1]) <= tables.total_rows
    if tables.pages:
        wrong = {f.request for f in found}
        assert all(length == 0 for r, (_, _, length) in enumerate(now) if r in wrong)
        assert all(0 <= page < tables.num_pages for _, pages, _ in now for page in pages)
        assert sum(len(pages) for _, pages, _ in now) <= tables.limit
    else:
        assert all(0 <= low <= tables.limit and high <= tables.limit for _, _, (low, high) in now)
    # If the sum exceeds the maximum, the request with too many pages is unknown: the later ones are reported.
    late = {f.request for f in found if f.rule == ALL_PAGES}
    for r in set(range(tables.requests)) - touched(corrupted) - late:
        assert now[r] == was[r], r


def test_random_corruptions_are_judged_as_on_the_host_and_made_safe(judge_all):
    reported = 0
    for seed in range(800):
        corrupted = case(seed)
        tables = tables_of(corrupted.descriptor)
        wanted = host.findings(tables, corrupted.args)
        found, safe = on_device(judge_all, tables, corrupted.args)
        more = [f for f in found if f not in wanted]  # to keep requests disjoint if something is wrong
        assert {f.request for f in wanted} <= {f.request for f in found}, seed
        assert all(f.rule in (FALLS, OVERLAPS) for f in more)
        assert not more or wanted
        check_safe(tables, safe, found, corrupted)
        reported += bool(found)
    assert reported > 400
