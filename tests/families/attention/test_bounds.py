"""The schedules of decode, compiled from the kernel's sources for the host, with lengths below and above every bound. Each key
is used once, each row is written, two partials never share a slot at the same time, and fixed chunks of a request do not
depend on other requests."""

import ctypes
import itertools

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.host_library import library

HOST = r"""
#include "tests/families/attention/warp_on_host.h"
#include "kernels/attention/decode/schedule/chunks.cuh"
using namespace opfacade;

template <SplitMode kMode, bool kHasWindow>
struct Config {
  static constexpr int kItemHeadBlocks = 1, kClustersPerUnit = 1, kClusterSize = 1;
  static constexpr bool kWindow = kHasWindow;
  static constexpr TableForm kTable = TableForm::kBlock;
  static constexpr SplitMode kSplit = kMode;
};

// Per item: block, request, head, first key, begin, end, part, parts, slot. Returns how many there are.
template <class C>
int items_of(const DecodeParams& p, int blocks, int* out, int room) {
  int count = 0;
  gridDim.x = blocks;
  for (int block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    run_warp([&](int lane) {
      Schedule<C, C::kSplit> schedule(p);
      WorkItem item{};
      while (schedule.next(item)) {
        const Partials partials = schedule.partials_of(item);
        const int row[9] = {block, item.request, item.head, item.first_key, item.begin,
                            item.end, partials.index, partials.count, partials.slot(partials.index)};
        if (lane == 0 && count < room) std::copy(row, row + 9, out + 9 * count);
        if (lane == 0) ++count;
      }
    });
  }
  return count;
}

template <SplitMode kMode>
int with_window(const DecodeParams& p, int blocks, int* out, int room) {
  if (p.window_left < 0) return items_of<Config<kMode, false>>(p, blocks, out, room);
  return items_of<Config<kMode, true>>(p, blocks, out, room);
}

extern "C" int items(int mode, const int* lens, int batch, int heads, int window, int chunk, int resident, int blocks,
                     int slots, int* out, int room) {
  DecodeParams p{};
  p.table.lens = lens, p.table.limit = INT32_MAX;
  p.batch = batch, p.kv_heads = heads, p.window_left = window;
  p.chunk = chunk, p.resident = resident, p.slots = slots;
  if (mode == 0) return with_window<SplitMode::kFixed>(p, blocks, out, room);
  if (mode == 1) return with_window<SplitMode::kAuto>(p, blocks, out, room);
  return with_window<SplitMode::kPieces>(p, blocks, out, room);
}
"""
MODES = ("fixed", "auto", "pieces")
SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    return library(tmp_path_factory.mktemp("bounds"), HOST)


def plan(mode, tokens, batch, heads, chunk, sms):
    """(resident CTAs, CTAs, slots) from attention_decode.cut_of, for a bound on the total tokens of all requests."""
    runs = batch * heads
    if mode == "fixed":
        blocks = heads * (tokens // chunk + batch)
        return 0, blocks, blocks
    resident = min(heads * (tokens // 64) + runs, sms)
    if mode == "pieces":
        return resident, runs + 3 * resident // 2, 3 * resident
    return resident, min(2 * resident, max(resident, runs)), 2 * resident


def items_of(host, mode, lens, heads, window, chunk, made):
    resident, blocks, slots = made
    room = 40_000
    out = (ctypes.c_int * (9 * room))()
    args = (len(lens), heads, window, chunk, resident, blocks, slots, out, room)
    count = host.items(MODES.index(mode), (ctypes.c_int * len(lens))(*lens), *args)
    assert count <= room
    return [tuple(out[9 * i : 9 * i + 9]) for i in range(count)]


def runs_of(items):
    """{(request, head): [(part, parts, first visible key of the part, end)]}, with the parts in order."""
    found = {}
    for _, request, head, first, begin, end, part, parts, _ in items:
        found.setdefault((request, head), []).append((part, parts, max(first, begin), end))
    return {run: sorted(own) for run, own in found.items()}


def hold(items, lens, heads, window, slots):
    runs = runs_of(items)
    assert set(runs) == set(itertools.product(range(len(lens)), range(heads)))  # every row is written
    for (request, _), own in runs.items():
        length = lens[request]
        first = max(0, length - 1 - window) if window >= 0 else 0
        assert [part for part, *_ in own] == list(range(own[0][1])), (request, own)
        ends = [end for *_, end in own]
        assert own[0][2] == first or length == 0
        assert ends[-1] == length
        assert all(a == b for (*_, a), (_, _, b, _) in itertools.pairwise(own)), (request, own)
    kept = {}  # A slot belongs to one unit, or to one CTA that computes all parts of its units, one unit after the other.
    for block, request, head, *_, parts, slot in items:
        if parts > 1:
            assert 0 <= slot < slots
            kept.setdefault(slot, []).append((block, (request, head)))
    shared = {slot: own for slot, own in kept.items() if len(own) > 1}
    assert all(len({block for block, _ in own}) == 1 and len({run for _, run in own}) == len(own) for own in shared.values())
    makers = {block for own in shared.values() for block, _ in own}
    for block in makers:  # No other CTA computes a part of these units, and the CTA ends one unit before it begins the next.
        mine = [(request, head) for b, request, head, *_ in items if b == block]
        assert all((b == block) == ((request, head) in set(mine)) for b, request, head, *_ in items)
        assert len([run for run, _ in itertools.groupby(mine)]) == len(set(mine))


LENGTHS = st.lists(
    st.one_of(st.integers(0, 5), st.integers(0, 700), st.sampled_from([63, 64, 65, 128, 2080]), st.integers(0, 6000)),
    min_size=1, max_size=45,
)  # fmt: skip


@SETTINGS
@given(LENGTHS, st.integers(0, 3000), st.integers(1, 3), st.sampled_from([-1, 0, 70, 900]), st.sampled_from([32, 64, 100, 256]))
@example([96] * 6, 192, 2, -1, 32)
@example([2080] * 45, 4160, 1, -1, 32)
@example([2**31 - 200], 100, 1, -1, 64)
@example([2**30, 2**29, 0, 7], 1000, 2, 5, 32)
def test_fixed_chunks_cover_every_request_and_depend_only_on_its_own_length(host, lens, tokens, heads, window, chunk):
    made = plan("fixed", tokens, len(lens), heads, chunk, 0)
    items = items_of(host, "fixed", lens, heads, window, chunk, made)
    hold(items, lens, heads, window, made[2])
    for (request, _), own in runs_of(items).items():
        length = lens[request]
        first = max(0, length - 1 - window) if window >= 0 else 0
        count = max(1, -(-length // chunk) - first // chunk)
        if count <= made[2]:  # a request within the bounds is split independently of the others
            starts = [(first // chunk + part) * chunk for part in range(count)]
            assert [end for *_, end in own] == [min(length, start + chunk) for start in starts]


@SETTINGS
@given(LENGTHS, st.integers(0, 3000), st.integers(1, 3), st.sampled_from([-1, 0, 70]), st.sampled_from([1, 5, 12, 264]))
@example([2**30, 2**29, 0, 7], 1000, 2, -1, 5)
@pytest.mark.parametrize("mode", ["auto", "pieces"])
def test_a_split_by_lengths_covers_every_request_for_any_lengths(host, mode, lens, tokens, heads, window, sms):
    made = plan(mode, tokens, len(lens), heads, 1, sms)
    hold(items_of(host, mode, lens, heads, window, 1, made), lens, heads, window, made[2])


def test_units_are_not_split_if_the_batch_has_more_tiles_than_an_int_can_count(host):
    """The long requests of all heads together have more than 2^31 tiles."""
    lens, heads = [2**29] * 3, 100
    made = plan("auto", 2**31 - 1, len(lens), heads, 1, 264)
    hold(items_of(host, "auto", lens, heads, -1, 1, made), lens, heads, -1, made[2])
