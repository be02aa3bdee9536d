"""How work is split: device functions, compiled for the host, cover every key once and are independent of the batch; closed
forms hold.
"""

import ctypes
import itertools
import random
import re
from unittest.mock import patch

import pytest

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import mla as cuda_mla
from opfacade.backends.cuda.attention import decode as attention_decode
from opfacade.backends.cuda.attention import prefill as attention_prefill
from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.plans.mla import BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from opfacade.testing import matrix, problems
from opfacade.testing.families.attention.requests import changed
from tests.support.host_library import library
from tests.test_structure import ROOT

KERNELS = ROOT / "kernels/attention"
CHUNKS, LENGTHS, CUT, PREFILL = (
    (KERNELS / f"{name}.cuh").read_text()
    for name in ("decode/schedule/chunks", "decode/schedule/lengths", "decode/schedule/cut", "prefill/schedule")
)
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


@pytest.mark.parametrize(("text", "name"), [(CUT, "fixed_splits"), (CUT, "set_fixed_keys"), (PREFILL, "fixed_range")])
def test_what_cuts_a_fixed_split_has_no_access_to_the_batch(text, name):
    parameters, body = function(text, name)
    for parameter in parameters.split(","):
        assert re.fullmatch(r"(int|WorkItem&|KvRange) \w+", parameter.strip()), parameter
    assert not re.search(r"\bp\.|blockIdx|gridDim|batch|target_ctas|num_splits|max_items|total_rows", body)


def test_a_fixed_schedule_is_cut_by_nothing_else():
    _, count = function(LENGTHS, "count_of")
    assert count.strip().splitlines()[-1].strip() == "return fixed_splits(kv_len, first_visible<C>(p, kv_len), p.chunk);"
    assert "set_keys(item, kv_length<C::kTable>(p_.table, item.request), p_.chunk);" in CHUNKS
    assert "set_fixed_keys(kv_len, chunk, partial_, item);" in CHUNKS
    assert "const KvRange part = fixed_range<C>(range, split, p.chunk);" in PREFILL


ARRIVED = re.compile(r"^ *__sync(threads|warp)\(\);  // .*\b(has|have) arrived\b")


def test_what_a_barrier_says_has_arrived_was_waited_for():
    """A copy that usually arrives in time hides a missing wait from every test that runs, so this test checks the source."""
    places = []
    for path in sorted(ROOT.glob("kernels/**/*.cuh")):
        lines = path.read_text().splitlines()
        for number in (number for number, line in enumerate(lines) if ARRIVED.search(line)):
            before = [line for line in lines[:number] if ".land(" not in line]  # which rests on the wait itself
            assert "cp_async_wait<" in before[-1], f"{path.name}:{number + 1}"
            places.append(path.name)
    assert len(places) >= 4, places  # K and V of prefill, decode of 16 bits and of f32


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The device functions as a host library."""
    prefill = re.search(r"template <class C>\n__device__ __forceinline__ \w+ fixed_range\(.*?\n}\n", PREFILL, re.DOTALL)[0]
    return library(tmp_path_factory.mktemp("schedule"), HOST.replace("PREFILL", prefill))


HOST = """
#include <algorithm>
#define __device__
#define __forceinline__ inline
using std::max;
using std::min;
#include "kernels/attention/decode/schedule/cut.cuh"
using namespace opfacade;
struct KvRange { int begin, end; };
struct Tile64 { static constexpr int kTileKv = 64; };
PREFILL
extern "C" int splits(int kv_len, int first_key, int chunk) { return fixed_splits(kv_len, first_key, chunk); }
extern "C" void decode_keys(int kv_len, int first_key, int chunk, int split, int* out) {
  WorkItem item{};
  item.first_key = first_key;
  set_fixed_keys(kv_len, chunk, split, item);
  out[0] = item.begin, out[1] = item.end;
}
extern "C" int share(long long tiles, int runs, int most, int blocks) { return even_share(tiles, runs, most, blocks); }
extern "C" void parts(int run, int count, int share, int block, int* out) {
  const Partials all = share_partials(run, count, share, block);
  out[0] = all.index, out[1] = all.count;
  for (int i = 0; i < all.count; ++i) out[2 + i] = all.slot(i);
}
extern "C" int team(int count, int blocks) { return tiles_per_cta(count, blocks); }
extern "C" void teams(int index, int teams, int* out) {
  const Partials all = cluster_partials(index, teams);
  out[0] = all.index, out[1] = all.count;
  for (int i = 0; i < teams; ++i) out[2 + i] = all.slot(i);
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
        # A tile's start depends only on the split, so a longer window changes no rounding.
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


def tiles_of(descriptor, length):
    return max(1, -(-length // 64) - first_visible(length, descriptor.window_left) // 64)


def test_no_lengths_need_more_fixed_items_than_promised(device):
    for seed in range(300):
        descriptor = problems.random_descriptor("paged_decode", seed)
        mode, chunk = attention_decode.split_of(descriptor, TARGET)
        if mode != "fixed":
            continue
        rng, window = random.Random(seed), descriptor.window_left
        promised, slots = attention_decode.grid_of(descriptor, TARGET)
        for _ in range(8):
            lengths = random_lengths(rng, descriptor.batch_size, descriptor.kv_token_bound)
            units = sum(device.splits(n, first_visible(n, window), chunk) for n in lengths)
            assert units * attention_decode.head_blocks(descriptor) <= promised == slots, (seed, lengths)


def even_blocks(device, runs, blocks):
    """A model of an even split: the segments [(unit, first tile, end tile, part, parts, slots)] of each block."""
    share = device.share(sum(runs), len(runs), max(runs), blocks)
    starts = list(itertools.accumulate([0, *runs]))
    cut = [[] for _ in range(blocks)]
    for run, (begin, end) in enumerate(itertools.pairwise(starts)):
        for block in range(begin // share if share else 0, (end - 1) // share + 1 if share else 0):
            out = (ctypes.c_int * (2 + blocks))()
            device.parts(begin, end - begin, share, block, out)
            first, last = max(begin, block * share), min(end, (block + 1) * share)
            cut[block].append((run, first - begin, last - begin, out[0], out[1], tuple(out[2 : 2 + out[1]])))
    return share, cut


@pytest.mark.parametrize("seed", range(40))
def test_even_shares_cover_every_tile_once_and_no_two_parts_share_a_slot(device, seed):
    rng = random.Random(seed)
    blocks = rng.choice([1, 7, 132, 264])
    heads = rng.choice([1, 2, 8])
    runs = [n for _ in range(rng.randint(1, 60)) for n in [rng.choice([1, 2, 16, rng.randint(1, 2000)])] * heads]
    share, cut = even_blocks(device, runs, blocks)
    if share == 0:
        return
    seen = sorted((run, begin, end) for segments in cut for run, begin, end, *_ in segments)
    for run, length in enumerate(runs):
        pieces = [(begin, end) for r, begin, end in seen if r == run]
        assert pieces[0][0] == 0
        assert pieces[-1][1] == length
        assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))
    used = [slots[part] for segments in cut for *_, part, parts, slots in segments if parts > 1]
    assert len(used) == len(set(used))
    assert all(0 <= slot < 2 * blocks for slot in used)
    for block, segments in enumerate(cut):
        assert sum(end - begin for _, begin, end, *_ in segments) <= share
        # A block's own part is in one of its two slots, and the counter of a unit is in a slot of the block that starts it.
        assert all(slots[part] // 2 == block for *_, part, parts, slots in segments if parts > 1)
        assert all(slots[0] // 2 <= block for *_, slots in segments)


@pytest.mark.parametrize(
    ("runs", "whole"),
    [([64] * 512, True), ([16] * 2048, True), ([2048] * 8, False), ([128] * 128, False), ([1024] * 8 + [16] * 504, False)],
)
def test_runs_stay_whole_where_all_blocks_are_busy_anyway(device, runs, whole):
    share, cut = even_blocks(device, runs, 264)
    assert (share == 0) == whole
    if not whole:
        busy = [sum(end - begin for _, begin, end, *_ in segments) for segments in cut]
        assert max(busy) <= 1.07 * sum(runs) / 264 + 1


def test_equal_runs_are_cut_into_equal_parts(device):
    """131072 keys of 8 heads over 264 blocks: 63 tiles each would leave every part across two heads; 64 do not."""
    share, cut = even_blocks(device, [2048] * 8, 264)
    assert share == 64
    assert all(len(segments) <= 1 for segments in cut)


@pytest.mark.parametrize(("cluster", "teams"), [(8, 1), (8, 2), (4, 4), (2, 3)])
def test_teams_share_the_tiles_of_a_run_as_evenly_as_whole_tiles_can_be(device, cluster, teams):
    for count in (*range(1, 200), 4097):
        share, blocks = device.team(count, cluster * teams), cluster * teams
        pieces = [(min(count, block * share), min(count, (block + 1) * share)) for block in range(blocks)]
        assert [tile for begin, end in pieces for tile in range(begin, end)] == list(range(count))
        assert max(end - begin for begin, end in pieces) == -(-count // blocks)


@pytest.mark.parametrize("teams", [1, 2, 3, 4])
def test_no_two_teams_share_a_slot_and_those_of_a_run_know_each_other(device, teams):
    for index in range(10 * teams):
        out = (ctypes.c_int * (2 + teams))()
        device.teams(index, teams, out)
        assert (out[0], out[1]) == (index % teams, teams)
        assert out[2 + out[0]] == index
        assert list(out[2:]) == [index // teams * teams + i for i in range(teams)]


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
    """For every op, mask and form of table: a fixed chunk is fixed, off is off; auto may become off, pieces, a cluster, or a
    chunk that we choose, which the SKU then names."""
    for op in ("paged_decode", "paged_prefill", "ragged_prefill"):
        for seed in range(60):
            descriptor = problems.random_descriptor(op, seed)
            asked = descriptor.kv_split if isinstance(descriptor.kv_split, str) else "fixed"
            spec = dict(Plan.select(descriptor, Preference(backend="cuda"), TARGET).sku.spec)
            got, ours = spec["split"], "chunk" in spec
            assert (
                (got == asked and not ours)
                or (asked, got) in {("auto", "off"), ("auto", "cluster"), ("auto", "pieces")}
                or ((asked, got, ours) == ("auto", "fixed", True))
            ), (op, seed)


def resident(descriptor):
    """Concurrent blocks of a decode, out of all blocks that may have work."""
    tiles = descriptor.kv_token_bound // 64 + descriptor.batch_size
    block = attention_decode.partition_of(descriptor, TARGET).block
    return min(attention_decode.head_blocks(descriptor) * tiles, TARGET.sm_count * block.resident)


@pytest.mark.parametrize("kind", [kind for kind in matrix.matrix() if kind.startswith("decode-even")])
def test_an_even_cut_has_two_slots_for_each_block(kind):
    """With more requests than random descriptors have."""
    descriptor = matrix.matrix()[kind]
    plan = Plan.select(descriptor, Preference(backend="cuda"), TARGET)
    blocks, slots = attention_decode.grid_of(descriptor, TARGET)
    assert dict(plan.sku.spec)["split"] == "auto"
    assert slots == 2 * resident(descriptor)
    assert slots // 2 <= blocks <= slots
    assert plan.workspace_size == slots * (min(descriptor.group_size, 16) * (descriptor.dim + 1) * 4 + 8)


def test_workspaces_are_the_closed_forms_of_the_kernels():
    for op in ("paged_decode", "paged_prefill", "ragged_prefill"):
        for seed in range(60):
            descriptor = problems.random_descriptor(op, seed)
            plan = Plan.select(descriptor, Preference(backend="cuda"), TARGET)
            dim, split = descriptor.dim, dict(plan.sku.spec)["split"]
            if split == "off":
                assert plan.workspace_size == 0
            elif op == "paged_decode":
                rows, teams = min(descriptor.group_size, 16), dict(plan.sku.spec).get("teams", 0)
                runs = descriptor.batch_size * attention_decode.head_blocks(descriptor)
                blocks, slots = attention_decode.grid_of(descriptor, TARGET)
                assert {
                    "auto": slots // 2 <= blocks <= slots,
                    "pieces": blocks == runs + slots // 2 and slots == 3 * resident(descriptor),
                    "fixed": slots == blocks,
                    "cluster": slots == runs * teams,
                }[split]
                counters = runs * -(-rows * dim // 128) if teams else slots
                assert plan.workspace_size == slots * rows * (dim + 1) * 4 + counters * 8
            else:
                _, splits, chunk = attention_prefill.splits_of(descriptor, TARGET)
                assert split == "auto" or splits * chunk >= descriptor.request_token_bound > (splits - 1) * chunk - 1
                rows = descriptor.total_num_rows * descriptor.num_qo_heads
                assert plan.workspace_size == splits * rows * (dim + 1) * 4


SERVING = PagedKvCacheDescriptor(num_total_pages=30_000, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16", layout="HND")
LATENTS = PagedLatentCacheDescriptor(num_total_pages=7500, page_size=64, dtype="bf16")


def bounded(kind, **fields):
    """A problem of a pool of 480,000 tokens, with or without a bound on one request."""
    own = {"total_num_rows": 8192, "causal": True} if kind is BatchPagedPrefillDescriptor else {}
    heads, cache = (128, LATENTS) if kind is BatchMlaDecodeDescriptor else (32, SERVING)
    return kind(batch_size=16, num_qo_heads=heads, kv_split=4096, paged_kv=cache, **own, **fields)


def workspace_of(descriptor):
    return Plan.select(descriptor, Preference(backend="cuda"), TARGET).workspace_size


@pytest.mark.parametrize(("tokens", "splits"), [(None, 118), (32_768, 8), (8192, 2), (8193, 3), (4096, 1), (1, 1), (0, 1)])
def test_a_bound_on_one_request_makes_a_prefill_affordable(tokens, splits):
    """14.9 GiB without, 0.26 GiB for 8192 tokens."""
    assert workspace_of(bounded(BatchPagedPrefillDescriptor, max_kv_len=tokens)) == 4 * splits * 8192 * 32 * 129


@pytest.mark.parametrize(("tokens", "chunks"), [(None, 117 + 16), (32_768, 128), (8192, 32), (8193, 48), (4096, 16), (0, 16)])
def test_a_bound_on_one_request_bounds_the_chunks_of_a_decode(tokens, chunks):
    decode = workspace_of(bounded(BatchPagedDecodeDescriptor, max_kv_len=tokens))
    assert decode == 8 * chunks * (4 * 4 * 129 + 8)
    latent = workspace_of(bounded(BatchMlaDecodeDescriptor, max_kv_len=tokens))
    assert latent == 2 * chunks * 64 * 4 * 513 + 20 * chunks


def test_a_bound_on_one_request_bounds_parts_and_no_identity():
    """The schedule has as many slots as it needs, whatever the lengths; the kernel is the same."""
    plain = bounded(BatchPagedDecodeDescriptor)
    for most in (1, 100, 4095, 4096, 4097, 20_000):
        plan = Plan.select(changed(plain, max_kv_len=most), Preference(backend="cuda"), TARGET)
        assert plan.sku == Plan.select(plain, Preference(backend="cuda"), TARGET).sku
        units = attention_decode.grid_of(plan.descriptor, TARGET)[0] // 8
        assert all(sum(max(1, -(-n // 4096)) for n in [most] * k + [0] * (16 - k)) <= units for k in range(17))


def test_an_automatic_split_follows_the_bound_on_one_request():
    """With a bound, a few requests of a large pool are short contexts, and need no workspace."""
    large = changed(bounded(BatchPagedDecodeDescriptor), kv_split="auto", batch_size=1)
    short = changed(large, max_kv_len=2000)
    assert dict(Plan.select(large, Preference(backend="cuda"), TARGET).sku.spec)["split"] == "pieces"
    assert dict(Plan.select(short, Preference(backend="cuda"), TARGET).sku.spec)["split"] == "cluster"


@pytest.mark.parametrize("kind", [k for k, d in matrix.attention().items() if d.kv_split != "auto"])
def test_the_binary_and_chunk_of_an_invariant_sku_do_not_follow_the_batch(kind):
    one = matrix.attention()[kind]
    many = changed(one, batch_size=200)
    if hasattr(one, "total_num_rows"):
        many = changed(many, total_num_rows=5000)
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):  # independent of the installed compiler
        plans = [Plan.select(d, Preference(backend="cuda"), TARGET) for d in (one, many)]
    assert plans[0].sku == plans[1].sku
    assert plans[0].jit_spec == plans[1].jit_spec
    if one.op == "mla_decode":
        assert cuda_mla.split_of(one) == cuda_mla.split_of(many)
        return
    cut = attention_decode.split_of if "decode" in kind else lambda d, t: attention_prefill.splits_of(d, t)[::2]
    assert cut(one, TARGET) == cut(many, TARGET)
