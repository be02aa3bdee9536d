"""The schedule of the sm_90a prefill, compiled from the kernel's sources for the host: it schedules every tile once, in order
of decreasing cost, and distributes the keys evenly over the CTAs."""

import ctypes
import itertools
import random
from collections import Counter
from typing import NamedTuple

import pytest

from tests.support.host_library import library

HOST = r"""
#include "tests/families/attention/warp_on_host.h"
#include "kernels/attention/prefill_sm90/scheduler.cuh"
using namespace opfacade;

template <int kGroupOf, bool kCausalMask, SplitMode kMode>
struct Config {
  struct T {};
  static constexpr int kHeadDim = 128, kHeadDimVo = 128, kKvBytes = 2;
  static constexpr int kGroup = kGroupOf, kTileRows = 128 / kGroupOf * kGroupOf, kTileKv = 128;
  static constexpr bool kCausal = kCausalMask, kWindow = false, kReturnLse = true, kSinks = false;
  static constexpr bool kPow2Pages = true, kSafePages = false;
  static constexpr TableForm kTable = TableForm::kRagged;
  static constexpr SplitMode kSplit = kMode;
};

// Per work: block, request, first, rows, head, split, begin, end, parts. Behind the works of a block, with ~block for it,
// the parts that it merges at its end. Returns how many there are.
template <class C>
int all_work(const WgmmaPrefillParams& p, int blocks, int* out, int room) {
  std::vector<Lengths> lengths(kMaxRanked);
  CutLine line;
  int count = 0;
  auto add = [&](int block, const Work& work) {
    const TilePart part = kCutsByLengths<C> && work.split != 0 ? TilePart::of(work.split) : TilePart{work.split, 1};
    const int row[9] = {block, work.tile.request, work.tile.first, work.tile.rows, work.head, part.index,
                        work.range.begin, work.range.end, part.count};
    if (count < room) std::copy(row, row + 9, out + 9 * count);
    ++count;
  };
  gridDim.x = blocks;
  for (int block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    Work parts[2];
    for (Work& part : parts) part.tile.rows = 0;
    run_warp([&](int lane) {
      Scheduler<C> scheduler(p, lengths.data(), line);
      scheduler.survey();
      for (;;) {
        const Work work = scheduler.next();
        if (kCutsByLengths<C> && lane == 0) keep_part(parts, work);
        if (work.tile.rows == 0) break;
        if (lane == 0) add(block, work);
      }
    });
    for (const Work& part : parts)
      if (part.tile.rows > 0) add(~block, part);
  }
  return count;
}

extern "C" int work_of(int group, int causal, int splits, int batch, const int* q_indptr, const int* kv_indptr, int heads,
                       int slots, int blocks, float* lse, uint16_t* o, int* out, int room) {
  WgmmaPrefillParams p{};
  p.base.q_indptr = q_indptr, p.base.table.indptr = kv_indptr, p.base.batch = batch, p.base.num_splits = splits;
  p.base.table.limit = kv_indptr[batch];
  p.base.heads = heads * group, p.base.total_rows = q_indptr[batch], p.kv_heads = heads, p.slots = slots;
  p.base.lse = p.base.partial_lse = lse, p.base.o = o, p.base.o_aligned = false;
  p.base.o_row_stride = 256ll * heads * group, p.base.o_head_stride = 256;
  if (splits == -1 && group == 3) return all_work<Config<3, true, SplitMode::kPieces>>(p, blocks, out, room);
  if (splits == -1 && causal) return all_work<Config<4, true, SplitMode::kPieces>>(p, blocks, out, room);
  if (splits == -1) return all_work<Config<4, false, SplitMode::kPieces>>(p, blocks, out, room);
  if (splits > 1) return all_work<Config<4, true, SplitMode::kAuto>>(p, blocks, out, room);
  if (group == 1) return all_work<Config<1, true, SplitMode::kOff>>(p, blocks, out, room);
  if (group == 7) return all_work<Config<7, true, SplitMode::kOff>>(p, blocks, out, room);
  if (causal) return all_work<Config<4, true, SplitMode::kOff>>(p, blocks, out, room);
  return all_work<Config<4, false, SplitMode::kOff>>(p, blocks, out, room);
}
"""


class Found(NamedTuple):
    block: int
    request: int
    first: int
    rows: int
    head: int
    split: int
    begin: int
    end: int
    parts: int


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    return library(tmp_path_factory.mktemp("wgmma_schedule"), HOST)


def ints(values):
    return (ctypes.c_int * len(values))(*values)


def indptr(lens):
    out = [0]
    for n in lens:
        out.append(out[-1] + n)
    return out


def work_of(host, q_lens, kv_lens, heads=2, group=4, causal=True, splits=1, blocks=5):
    rows, tile = sum(q_lens), 128 // group * group
    slots = rows * group // tile + len(q_lens)
    room = 20 * slots * heads * abs(splits) + 4 * blocks + 1
    out = (ctypes.c_int * (9 * room))()
    numbers = rows * heads * group * abs(splits)
    lse = (ctypes.c_float * max(1, numbers))(*([7.0] * numbers))
    o = (ctypes.c_uint16 * max(1, rows * heads * group * 128))()
    count = host.work_of(
        group, causal, splits, len(q_lens), ints(indptr(q_lens)), ints(indptr(kv_lens)), heads, slots, blocks, lse, o, out, room
    )  # fmt: skip
    assert count <= room
    found = [Found(*out[9 * i : 9 * i + 9]) for i in range(count)]
    merged = [w._replace(block=~w.block) for w in found if w.block < 0]
    work = [w for w in found if w.block >= 0]
    assert sorted(merged) == sorted(w for w in work if w.parts > 1)  # a CTA merges only parts that it has computed
    return work, list(lse)


def expected(q_lens, kv_lens, heads, group, causal):
    """{(request, first packed row, head): (rows, end of the keys)} for every tile with at least one visible key."""
    tile, want = 128 // group * group, {}
    for request, (q, kv) in enumerate(zip(q_lens, kv_lens, strict=True)):
        for first in range(0, q * group, tile):
            rows = min(tile, q * group - first)
            end = min(kv, (first + rows - 1) // group + kv - q + 1) if causal else kv
            if end > 0:
                want |= {(request, first, head): (rows, end) for head in range(heads)}
    return want


CASES = [
    ([300, 0, 7, 1000], [300, 50, 900, 1200], 4, True),
    ([64, 64, 64], [10, 64, 0], 4, True),
    ([500, 3], [100, 3], 7, True),
    ([200, 100, 900], [5, 0, 3000], 4, False),
    ([1] * 70 + [400], [333] * 70 + [400], 4, True),
    ([3] * 300, [40] * 300, 4, True),
]


@pytest.mark.parametrize(("q_lens", "kv_lens", "group", "causal"), CASES)
def test_every_tile_is_scheduled_once(host, q_lens, kv_lens, group, causal):
    work, lse = work_of(host, q_lens, kv_lens, group=group, causal=causal)
    want = expected(q_lens, kv_lens, 2, group, causal)
    assert Counter((w[1], w[2], w[4]) for w in work) == Counter(want.keys())
    assert all((w[3], w[7]) == want[w[1], w[2], w[4]] and w[6] == 0 for w in work)
    unseen = sum(q * 2 * group for q in q_lens) - sum(rows for rows, _ in want.values())
    assert sum(x == float("-inf") for x in lse) == unseen  # the schedule itself writes the lse of rows without keys


@pytest.mark.parametrize(
    ("kv_lens", "blocks", "together"),
    [([300, 50, 900], 7, 48), ([20000, 50, 40000], 7, 3), ([4000, 50, 5500], 7, 6), ([20000, 50, 40000], 60, 6)],
    ids=["all fit the L2", "as few as there are halves", "as many as fit the L2", "no fewer than three rounds"],
)
def test_head_rounds_alternate_their_direction(host, kv_lens, blocks, together):
    """Every tile is scheduled once, rounds alternate their direction, and the last round is in order of decreasing cost."""
    q_lens = [300, 0, 1000]
    work, _ = work_of(host, q_lens, kv_lens, heads=48, blocks=blocks)
    want = expected(q_lens, kv_lens, 48, 4, True)
    assert Counter((w[1], w[2], w[4]) for w in work) == Counter(want.keys())
    last = 48 // together - 1
    for block in range(blocks):
        found = [(w[4] // together, -(-w[7] // 128)) for w in work if w[0] == block]
        assert found == sorted(found, key=lambda x: (x[0], x[1] if (last - x[0]) % 2 else -x[1]))
    if together < 48:  # otherwise there is only one head round
        assert len({w[4] // together for w in work if w[0] == 0}) > 1
        costs = [-(-w[7] // 128) for w in work if w[4] // together == last - 1 and w[0] == 0]
        assert costs == sorted(costs)


def test_splits_cover_the_keys_of_each_tile(host):
    work, _ = work_of(host, [40, 9], [3000, 777], splits=4)
    for key, (_, end) in expected([40, 9], [3000, 777], 2, 4, True).items():
        parts = sorted((w[6], w[7]) for w in work if (w[1], w[2], w[4]) == key)
        assert parts[0][0] == 0
        assert parts[-1][1] == end
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))


@pytest.mark.parametrize("q_lens", [[4096], [1024] * 4, [2000, 100, 700, 31]])
def test_ctas_get_nearly_equal_work(host, q_lens):
    """The keys of each CTA differ from the mean by at most one of the longest tiles, and the works of a CTA do not grow."""
    work, _ = work_of(host, q_lens, q_lens, blocks=7)
    loads = Counter()
    for w in work:
        loads[w.block] += -(-w.end // 128)
    longest = -(-max(q_lens) // 128)
    assert max(loads.values()) - min(loads.values()) <= longest
    for block in range(7):
        costs = [-(-w[7] // 128) for w in work if w[0] == block]
        assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(
    ("q_lens", "heads", "group"),
    [([8192], 8, 4), ([4096] * 4, 8, 4), ([1024] * 16, 8, 4), ([8192], 32, 1), ([12000], 8, 4), ([6000] * 3, 8, 4)],
)
def test_alternating_directions_balance_the_ctas(host, q_lens, heads, group):
    """No CTA of a whole GPU exceeds the mean by 4 %; without alternating directions the excess was up to 70 %."""
    work, _ = work_of(host, q_lens, q_lens, heads=heads, group=group, blocks=132)
    loads = Counter()
    for w in work:
        loads[w.block] += -(-w.end // 128)
    assert len(loads) == 132
    assert max(loads.values()) <= 1.04 * sum(loads.values()) / 132


def test_every_tile_of_random_lengths_is_scheduled_once(host):
    rng = random.Random(3)
    for _ in range(12):
        batch = rng.choice((1, 2, 9, 40))
        q_lens = [rng.choice((0, 1, 5, 33, 260)) for _ in range(batch)]
        kv_lens = [rng.choice((0, 1, 100, 129, 700)) for _ in range(batch)]
        work, _ = work_of(host, q_lens, kv_lens, heads=1, blocks=rng.choice((1, 3, 11)))
        assert Counter((w[1], w[2], w[4]) for w in work) == Counter(expected(q_lens, kv_lens, 1, 4, True).keys())


PIECES = -1  # the number of splits that stands for kv_split="pieces"
# Query lengths, key lengths, number of CTAs, and whether the schedule splits tiles.
CUT = {
    "one long": ([1, 512], [24000, 512], 12, True),
    "eight long": ([1] * 8 + [512], [24000] * 8 + [512], 12, True),
    "as many as there are blocks": ([1] * 6 + [512], [24000] * 6 + [512], 12, False),
    "one more than there are blocks": ([1] * 7 + [512], [24000] * 7 + [512], 12, True),
    "three long": ([1] * 3 + [512], [24000] * 3 + [512], 12, True),
    "a chunk beside a longer row": ([1, 600], [60000, 9000], 12, True),
    "long and empty": ([0, 1, 3, 0, 70], [0, 9000, 2, 5, 1000], 7, True),
    "equal": ([300] * 4, [300] * 4, 5, False),
    "one chunk of few": ([500, 2], [9000, 9000], 24, True),
    "more than are ranked": ([1] * 299 + [9], [150] * 150 + [40000] + [150] * 149, 24, True),
    "no request": ([0, 0], [70, 0], 5, False),
    "a tile begins less than a tile of keys before the last share": ([1] * 8, [4096] * 8, 33, True),
}


def check_pieces(work, lse, q_lens, kv_lens, group=4, causal=True, heads=2):
    """Checks that every tile is whole or consists of consecutive parts, and that a CTA has at most one part that begins a tile
    and one part that continues a tile. Returns the number of split tiles."""
    want, tiles, slots = expected(q_lens, kv_lens, heads, group, causal), {}, Counter()
    for w in work:
        tiles.setdefault((w.request, w.first, w.head), []).append(w)
        if w.parts > 1:
            slots[w.block, w.split == 0] += 1
    assert tiles.keys() == want.keys()
    assert max(slots.values(), default=1) == 1
    for key, parts in tiles.items():
        parts.sort(key=lambda w: w.split)
        assert [(w.split, w.parts, w.block - parts[0].block) for w in parts] == [(i, len(parts), i) for i in range(len(parts))]
        assert (parts[0].begin, parts[-1].rows, parts[-1].end) == (0, *want[key])
        assert all(a.end == b.begin and b.begin % 128 == 0 and b.begin < b.end for a, b in itertools.pairwise(parts))
        assert all(w.begin < w.end for w in parts)
    unseen = sum(q * heads * group for q in q_lens) - sum(rows for rows, _ in want.values())
    assert sum(x == float("-inf") for x in lse) == unseen
    return sum(len(parts) > 1 for parts in tiles.values())


@pytest.mark.parametrize("name", CUT)
def test_long_row_tiles_are_split_so_that_ctas_end_together(host, name):
    """No CTA exceeds its share by more than a quarter plus the work that is too small to split."""
    q_lens, kv_lens, blocks, cut = CUT[name]
    work, lse = work_of(host, q_lens, kv_lens, splits=PIECES, blocks=blocks)
    assert (check_pieces(work, lse, q_lens, kv_lens) > 0) == cut
    loads = Counter()
    for w in work:
        loads[w.block] += -(-(w.end - w.begin) // 128)
    even = sum(loads.values()) / blocks
    assert max(loads.values(), default=0) <= 1.3 * even + 5


def test_a_balanced_batch_is_scheduled_as_without_splits(host):
    for q_lens in ([2000] * 4, [2000, 1900, 700, 31], [64] * 64):
        cut, _ = work_of(host, q_lens, q_lens, splits=PIECES, blocks=7)
        plain, _ = work_of(host, q_lens, q_lens, blocks=7)
        assert [w[:8] for w in cut] == [w[:8] for w in plain]
        assert all(w.parts == 1 for w in cut)


@pytest.mark.parametrize("seed", range(25))
def test_parts_of_random_lengths_cover_every_tile(host, seed):
    rng = random.Random(seed)
    batch = rng.choice((1, 2, 9, 40, 260))
    q_lens = [rng.choice((0, 1, 5, 33, 260)) for _ in range(batch)]
    kv_lens = [rng.choice((0, 1, 100, 129, 700)) for _ in range(batch)]
    for _ in range(rng.choice((0, 1, 3))):
        kv_lens[rng.randrange(batch)] = rng.choice((2000, 15001, 40000))
    group, causal = rng.choice(((4, True), (3, True), (4, False)))
    work, lse = work_of(host, q_lens, kv_lens, group=group, causal=causal, splits=PIECES, blocks=rng.choice((1, 3, 11, 50)))
    check_pieces(work, lse, q_lens, kv_lens, group, causal)
