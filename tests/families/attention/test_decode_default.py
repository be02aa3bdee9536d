"""Decode with kv_split="auto": the split that the bounds select, the fields of its SKU, and its speed according to a record."""

import json
from pathlib import Path

import pytest

from opfacade import Preference, Target
from opfacade.backends.cuda.attention import decode as cuda
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.select.selection import choose, survey
from opfacade.tools.workload import read
from opfacade.tune.tune import eligible

SM90 = Target.parse("sm_90a")
DATA = Path(__file__).parents[2] / "data"


def decode(batch, tokens, heads=32, kv_heads=8, dim=128, dtype="bf16", **fields):
    pool = PagedKvCacheDescriptor(
        num_total_pages=-(-tokens // 16), page_size=16, num_kv_heads=kv_heads, head_dim=dim, dtype=dtype, layout="HND"
    )
    return BatchPagedDecodeDescriptor(batch_size=batch, num_qo_heads=heads, paged_kv=pool, **fields)


def chosen(descriptor):
    return choose(descriptor, SM90, survey(descriptor, Preference(), SM90)).sku


@pytest.mark.parametrize(
    ("descriptor", "cut"),
    [
        (decode(8, 12976), ("fixed", 512)),  # 264 chunks for 264 resident CTAs
        (decode(8, 16384), ("pieces", 0)),  # more than 264 chunks for both chunk sizes
        (decode(128, 181046, 8, 1), ("fixed", 1024)),
        (decode(64, 64 * 4096), ("pieces", 0)),
        (decode(8, 1 << 22), ("pieces", 0)),  # the bound is so large that it says nothing about the lengths
        (decode(1, 8192), ("cluster", 0)),
        (decode(8, 8192, 8, 1), ("cluster", 0)),
        (decode(32, 51366, 16, 8, 256, window_left=1023), ("off", 0)),
        (decode(34, 51366, 16, 8, 256, window_left=1023), ("pieces", 0)),  # eight work units would need a wave of their own
        (decode(32, 20000, 16, 8, 256, window_left=1023), ("pieces", 0)),  # windows too short to keep all CTAs busy
        (decode(2, 8400, 4, 2, 256), ("pieces", 0)),  # one chunk takes a single CTA too long
        (decode(8, 12976, dtype="f8_e4m3"), ("pieces", 0)),  # not measured
        (decode(8, 12976, dim=64), ("pieces", 0)),
        (decode(256, 1 << 18), ("pieces", 0)),
        (decode(257, 1 << 18), ("auto", 0)),  # too many lengths for each CTA to read
    ],
)
def test_the_bounds_select_the_split_of_kv_split_auto(descriptor, cut):
    assert cuda.split_of(descriptor, SM90) == cut


@pytest.mark.parametrize("split", ["off", 256, 512, 4096])
def test_a_requested_split_is_used(split):
    for problem in (decode(8, 12976, kv_split=split), decode(32, 51366, 16, 8, 256, window_left=1023, kv_split=split)):
        assert cuda.split_of(problem, SM90) == (("fixed", split) if isinstance(split, int) else ("off", 0))
        assert "chunk" not in dict(chosen(problem).spec)


def test_the_selected_chunk_size_is_part_of_the_sku_id():
    """Otherwise two batches could select one SKU with different chunk sizes, and its batch invariance would not hold."""
    small, large = chosen(decode(8, 12976, 8, 1)), chosen(decode(128, 181046, 8, 1))
    assert (dict(small.spec)["chunk"], dict(large.spec)["chunk"]) == (512, 1024)
    assert small.id != large.id
    assert small.id != chosen(decode(8, 12976, 8, 1, kv_split=512)).id
    assert all(sku.precision_guarantee.batch_invariant == "composition" for sku in (small, large))
    assert chosen(decode(64, 64 * 4096)).precision_guarantee.batch_invariant == "none"


def test_all_chunk_sizes_use_the_same_binary():
    ours, callers = (cuda.jit_spec(decode(8, 12976, kv_split=split), SM90) for split in ("auto", 512))
    assert ours == callers


def test_even_shares_and_pieces_can_still_be_pinned_and_measured():
    problem = decode(8, 12976)
    options = {option.candidate.config: option.sku for option in eligible(problem, Preference(), SM90)}
    for mode in ("auto", "pieces"):
        assert dict(options[f"split={mode}"].spec)["split"] == mode
        assert "auto" not in dict(options[f"split={mode}"].spec)
    assert "chunk=512" not in options
    assert len({sku.id for sku in options.values()}) == len(options)


@pytest.mark.parametrize(("batch", "other"), [(64, "split=auto"), (300, "split=pieces")])
def test_the_default_split_is_not_offered_as_a_config(batch, other):
    offered = {o.candidate.config for o in eligible(decode(batch, batch * 4096), Preference(), SM90)}
    assert offered & {"split=auto", "split=pieces"} == {other}


def without_promise(sku):
    """A SKU id without the parts whose form may change: the digest of the guarantee, and the base of lse among the facts."""
    return sku.rpartition("/")[0].replace("lse_base=e,", "")


def test_the_default_split_is_close_to_the_fastest_measured_candidate():
    """The times come from a record, in which the default is one of the measured candidates. Teams and pieces were not measured;
    even shares, which are not faster, stand in for them."""
    rows = iter(json.loads((DATA / "tune_fitted.json").read_text())["rows"])
    works = (w for w in read((DATA / "tune.work.jsonl").read_text()) if w.descriptor.op != "mla_decode")
    lost = {}
    for number, (work, row) in enumerate(zip(works, rows, strict=True)):
        default = chosen(work.descriptor) if work.descriptor.op == "paged_decode" else None
        if default is not None and "teams" not in dict(default.spec):
            times = {without_promise(sku): time for sku, (time, _, _) in row["measured"].items()}
            assert len(times) == len(row["measured"])
            measured = without_promise(default.id).replace("split=pieces", "split=auto")
            lost[number, row["problem"]] = times[measured] / min(times.values()) - 1
    assert len(lost) == 18
    assert sum(lost.values()) / len(lost) <= 0.01
    assert max(lost.values()) <= 0.03
