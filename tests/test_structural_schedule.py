"""How work is cut: device functions, compiled for the host, cover every key once and see no batch; closed forms hold."""

import ctypes
import itertools
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import attention_decode, attention_prefill
from opfacade.testing import matrix, problems
from opfacade.testing.requests import changed
from tests.test_structure import ROOT

KERNELS = ROOT / "kernels/attention"
DECODE, PREFILL = ((KERNELS / f"{name}_schedule.cuh").read_text() for name in ("decode", "prefill"))
TARGET = Target.parse("sm_90a")
GRID = [
    (kv_len, window, chunk)
    for kv_len in (0, 1, 63, 64, 65, 128, 1000, 4097)
    for window in (-1, 0, 5, 64, 700, 10**6)
    for chunk in (1, 32, 64, 100, 1000, 2**31 - 1)
]


def function(text, name):
    """(parameters, body) of a device function."""
    found = re.search(rf"__forceinline__ \w+ {name}\(([^)]*)\) {{\n(.*?)\n}}\n", text, re.DOTALL)
    assert found, name
    return found[1], found[2]


@pytest.mark.parametrize(("text", "name"), [(DECODE, "fixed_splits"), (DECODE, "set_fixed_keys"), (PREFILL, "fixed_range")])
def test_what_cuts_a_fixed_split_has_no_access_to_the_batch(text, name):
    parameters, body = function(text, name)
    for parameter in parameters.split(","):
        assert re.fullmatch(r"(int|WorkItem&|KvRange) \w+", parameter.strip()), parameter
    assert not re.search(r"\bp\.|blockIdx|gridDim|batch|target_ctas|num_splits|max_items|total_rows", body)


def test_a_fixed_schedule_is_cut_by_nothing_else():
    _, splits = function(DECODE, "num_splits")
    after_auto = splits.split("// nearest")[1].splitlines()[1:]
    assert [line.strip() for line in after_auto] == ["return fixed_splits(kv_len, first_visible<C>(p, kv_len), p.chunk);"]
    assert "if constexpr (C::kSplit == SplitMode::kAuto) chunk_tiles = auto_chunk<C>" in DECODE
    assert "if constexpr (C::kSplit == SplitMode::kFixed) return fixed_range<C>(range, split, p.chunk);" in PREFILL


@pytest.mark.parametrize("path", sorted(ROOT.glob("kernels/**/*.cuh")), ids=lambda p: p.name)
def test_what_a_barrier_says_has_arrived_was_waited_for(path):
    """A copy that is mostly in time hides a missing wait from every test that runs: so the source must have it."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if re.search(r"// .*\b(is|are) here\b", line):
            assert "cp_async_wait<" in lines[number - 1], f"{path.name}:{number + 1}"


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The device functions as a host library."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("schedule")
    own = [
        re.search(rf"(template <class C>\n)?__device__ __forceinline__ \w+ {name}\(.*?\n}}\n", text, re.DOTALL)[0]
        for text, name in ((DECODE, "fixed_splits"), (DECODE, "set_fixed_keys"), (PREFILL, "fixed_range"))
    ]
    (folder / "host.cc").write_text(HOST.replace("FUNCTIONS", "".join(own)))
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", folder / "host.so", folder / "host.cc"], check=True)
    return ctypes.CDLL(str(Path(folder / "host.so")))


HOST = """
#include <algorithm>
#define __device__
#define __forceinline__ inline
using std::max;
using std::min;
struct WorkItem { int first_key, split, begin, end; };
struct KvRange { int begin, end; };
struct Tile64 { static constexpr int kTileKv = 64; };
constexpr int kShareTokens = 64;
FUNCTIONS
extern "C" int splits(int kv_len, int first_key, int chunk) { return fixed_splits(kv_len, first_key, chunk); }
extern "C" void decode_keys(int kv_len, int first_key, int chunk, int split, int* out) {
  WorkItem item{first_key, split, 0, 0};
  set_fixed_keys(kv_len, chunk, item);
  out[0] = item.begin, out[1] = item.end;
}
extern "C" void prefill_keys(int begin, int end, int split, int chunk, int* out) {
  KvRange range = fixed_range<Tile64>({begin, end}, split, chunk);
  out[0] = range.begin, out[1] = range.end;
}
"""


def first_visible(kv_len, window):
    return 0 if window < 0 else max(0, kv_len - 1 - window)


def pair(call, *args):
    out = (ctypes.c_int * 2)()
    call(*args, out)
    return out[0], out[1]


def test_fixed_decode_splits_cover_every_visible_key_once(device):
    for kv_len, window, chunk in GRID:
        first = first_visible(kv_len, window)
        ranges = [
            pair(device.decode_keys, kv_len, first, chunk, s) for s in range(min(5000, device.splits(kv_len, first, chunk)))
        ]
        visible = [(max(begin, first), end) for begin, end in ranges]
        assert visible[0][0] == first or kv_len == 0
        assert visible[-1][1] == kv_len
        assert all(a[1] == b[0] for a, b in itertools.pairwise(visible)), (kv_len, window, chunk)
        assert all(begin < end for begin, end in visible) or kv_len == 0
        # A tile starts at a place that the split alone decides, so a longer window moves no rounding.
        assert all((begin - s) % 64 == 0 for (begin, _), s in zip(ranges, starts(first, chunk), strict=False))


def starts(first, chunk):
    number = first // chunk
    while True:
        yield number * chunk
        number += 1


def test_fixed_prefill_splits_cover_every_visible_key_once(device):
    for kv_len, window, chunk in GRID:
        begin = first_visible(kv_len, window)
        count = -(-kv_len // chunk)
        ranges = [pair(device.prefill_keys, begin, kv_len, s, chunk) for s in range(min(count, 5000))]
        seen = [(max(a, begin), b) for a, b in ranges if max(a, begin) < b]
        assert not kv_len or (seen[0][0] == begin and seen[-1][1] == kv_len)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(seen)), (kv_len, window, chunk)


def random_lengths(rng, batch, bound):
    cuts = sorted(rng.randint(0, bound) for _ in range(batch))
    return [b - a for a, b in zip([0, *cuts], cuts, strict=False)]


def units(descriptor, lengths, device):
    """Work items in units, as the device counts them; an own model for auto splits."""
    mode, chunk = attention_decode.split_of(descriptor)
    window, blocks = descriptor.window_left, attention_decode.head_blocks(descriptor)
    if mode == "off":
        return len(lengths)
    if mode == "fixed":
        return sum(device.splits(n, first_visible(n, window), chunk) for n in lengths)
    tiles = [-(-n // 64) - first_visible(n, window) // 64 for n in lengths]
    target = TARGET.sm_count * attention_decode.blocks_per_sm(descriptor, TARGET)
    share = max(2, -(-sum(tiles) * blocks // target))
    return sum(max(1, (t + share // 2) // share) for t in tiles)


def test_no_lengths_need_more_work_items_than_promised(device):
    for seed in range(150):
        descriptor = problems.random_descriptor("paged_decode", seed)
        rng = random.Random(seed)
        blocks = attention_decode.head_blocks(descriptor)
        _, promised = attention_decode.items_of(descriptor, TARGET)
        for _ in range(8):
            lengths = random_lengths(rng, descriptor.batch_size, descriptor.kv_token_bound)
            assert units(descriptor, lengths, device) * blocks <= promised, (seed, lengths)


def test_a_prefill_has_a_slot_for_every_tile():
    for seed in range(60):
        descriptor = problems.random_descriptor("paged_prefill", seed)
        rng, tile = random.Random(seed), attention_prefill.TILES[descriptor.dim].rows
        rows, group = descriptor.total_num_rows, descriptor.group_size
        cuts = [0, *sorted(rng.randint(0, rows) for _ in range(descriptor.batch_size - 1)), rows]
        slots = [at * group // tile + request for request, at in enumerate(cuts)]
        for request, (a, b) in enumerate(itertools.pairwise(cuts)):
            assert slots[request + 1] - slots[request] >= -(-(b - a) * group // tile)
        assert slots[-1] == rows * group // tile + descriptor.batch_size  # the launch grid


def test_the_split_that_was_asked_for_reaches_the_sku():
    """By every op, mask and form of table: a fixed chunk is fixed, off is off; only auto may become off."""
    for op in ("paged_decode", "paged_prefill", "ragged_prefill"):
        for seed in range(60):
            descriptor = problems.random_descriptor(op, seed)
            asked = descriptor.kv_split if isinstance(descriptor.kv_split, str) else "fixed"
            got = dict(Plan.select(descriptor, Preference(backend="cuda"), TARGET).sku.spec)["split"]
            assert got == asked or (asked, got) == ("auto", "off"), (op, seed)


def test_workspaces_are_the_closed_forms_of_the_kernels():
    for op in ("paged_decode", "paged_prefill", "ragged_prefill"):
        for seed in range(60):
            descriptor = problems.random_descriptor(op, seed)
            plan = Plan.select(descriptor, Preference(backend="cuda"), TARGET)
            dim, split = descriptor.dim, dict(plan.sku.spec)["split"]
            if split == "off":
                assert plan.workspace_size == 0
            elif op == "paged_decode":
                rows = min(descriptor.group_size, 16)
                _, items = attention_decode.items_of(descriptor, TARGET)
                assert plan.workspace_size == items * rows * (dim + 1) * 4 + descriptor.batch_size * 8
            else:
                _, splits, chunk = attention_prefill.splits_of(descriptor, TARGET)
                assert split == "auto" or splits * chunk >= descriptor.kv_token_bound > (splits - 1) * chunk - 1
                rows = descriptor.total_num_rows * descriptor.num_qo_heads
                assert plan.workspace_size == splits * rows * (dim + 1) * 4


@pytest.mark.parametrize("kind", [k for k, d in matrix.attention().items() if d.kv_split != "auto"])
def test_the_binary_and_chunk_of_an_invariant_sku_do_not_follow_the_batch(kind):
    one = matrix.attention()[kind]
    many = changed(one, batch_size=200)
    if hasattr(one, "total_num_rows"):
        many = changed(many, total_num_rows=5000)
    plans = [Plan.select(d, Preference(backend="cuda"), TARGET) for d in (one, many)]
    assert plans[0].sku == plans[1].sku
    assert plans[0].jit_spec == plans[1].jit_spec
    cut = attention_decode.split_of if "decode" in kind else lambda d: attention_prefill.splits_of(d, TARGET)[::2]
    assert cut(one) == cut(many)
