"""Prefill over ranks: shares of rows against loops, and outputs with gathered K and V against one rank."""

import math

import pytest
import torch

from opfacade import Plan
from opfacade.errors import DescriptorError
from opfacade.plans.attention import (
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    PagedKvCacheDescriptor,
    PrefillShares,
)
from opfacade.plans.collective import CollectiveArgs, CollectiveDescriptor
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor
from tests.support.local_ranks import on_ranks

PAGE, HEADS, KV, DIM, PAGES = 16, 4, 2, 64, 20
NEW, LENS = (200, 7, 0, 130), (200, 40, 5, 194)  # rows, and keys including cached ones


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_row_is_computed_once_and_sees_the_keys_before_it(world):
    shares = PrefillShares.zigzag(NEW, LENS, world)
    seen = {}
    for rank, own in enumerate(shares.runs):
        rows = iter(shares.rows(rank).tolist())
        for run in own:
            for i in range(run.rows):
                row = next(rows)
                assert row == sum(NEW[: run.request]) + run.first + i
                # aligned to the bottom right: the last row of a run sees all its keys
                seen[row] = run.keys - run.rows + i + 1
        assert next(rows, None) is None
        assert shares.q_indptr(rank).tolist()[-1] == shares.counts[rank] == sum(run.rows for run in own)
    want = [cached + i + 1 for n, length in zip(NEW, LENS, strict=True) for cached in [length - n] for i in range(n)]
    assert [seen[row] for row in range(sum(NEW))] == want
    assert shares.balance == sum(want) / world / max(sum(_keys(own)) for own in shares.runs)


def _keys(own):
    return [run.keys - run.rows + i + 1 for run in own for i in range(run.rows)]


def test_an_early_and_a_late_run_make_equal_work():
    """Equal runs in order would have (2 W - 1) / W^2 of the work on the last rank: 0.57 of an ideal speed-up at 4 ranks."""
    assert PrefillShares.zigzag((4096,), (4096,), 4).balance == 1
    assert PrefillShares.zigzag((4096,), (9000,), 4).balance == 1
    whole = PrefillShares.zigzag((100, 90, 20), (100, 90, 20), 4)
    assert sorted(len(own) for own in whole.runs) == [0, 1, 1, 1]
    assert PrefillShares.zigzag((), (), 3).balance == 1


def appended(d, new, table, k_data, v_data, shares=None):
    """An append of rows [rows, 2, KV, DIM] of k and v: in the order of requests, or as received from the ranks."""
    indptr, lens = torch.tensor([0, 200, 207, 207, 337], dtype=torch.int32), torch.tensor(LENS, dtype=torch.int32)
    if shares is not None:
        indptr, lens, requests = shares.gathered()
        table = table[requests]
    append = PagedKvAppendDescriptor(
        batch_size=len(lens), total_num_rows=len(new), paged_kv=d, page_table="block", max_kv_indices=table.numel()
    )
    args = PagedKvAppendArgs(
        k_new=new[:, 0], v_new=new[:, 1], k_data=k_data, v_data=v_data, append_indptr=indptr, block_table=table, kv_lens=lens
    )
    Plan.select(append).run(args)


def gathered(shares, own, group, ordered=True):
    """Rows of all ranks, in the order of requests."""
    width = own[0].numel() if len(own) else math.prod(own.shape[1:])
    d = CollectiveDescriptor(world=group.world, kind="all_gather", counts=shares.counts, width=width, dtype="f32")
    x = torch.zeros(max(shares.counts), width)
    x[: len(own)] = own.reshape(len(own), width)
    out = torch.empty(sum(shares.counts), width)
    Plan.select(d).run(CollectiveArgs(x=x, out=out, group=group))
    return (out[shares.places()] if ordered else out).view(-1, *own.shape[1:])


def cached(rows):
    """K or V of all requests in pages; new tokens are still NaN."""
    pool = torch.full((PAGES * len(LENS), PAGE, KV, DIM), math.nan)
    for b, (n, length) in enumerate(zip(NEW, LENS, strict=True)):
        flat = pool[b * PAGES : (b + 1) * PAGES].view(-1, KV, DIM)
        flat[: length - n] = rows[b][: length - n]
    return pool


def prefill(world, group, q, k, v, ordered=True):
    """o of all rows; each rank computes its own runs."""
    rank, shares = group.rank, PrefillShares.zigzag(NEW, LENS, world)
    new_k, new_v = (torch.cat([rows[b][len(rows[b]) - n :] for b, n in enumerate(NEW)]) for rows in (k, v))
    own, k_data, v_data = shares.rows(rank), cached(k), cached(v)
    pool = PagedKvCacheDescriptor(
        num_total_pages=len(k_data), page_size=PAGE, num_kv_heads=KV, head_dim=DIM, dtype="f32", layout="NHD"
    )
    table = torch.arange(len(k_data), dtype=torch.int32).view(len(LENS), PAGES)
    rows = gathered(shares, torch.stack([new_k, new_v], 1)[own], group, ordered)  # k and v in one exchange
    appended(pool, rows, table, k_data, v_data, None if ordered else shares)
    o = torch.full((len(own), HEADS, DIM), math.nan)
    d = BatchPagedPrefillDescriptor(
        batch_size=len(shares.runs[rank]), total_num_rows=len(own), num_qo_heads=HEADS, causal=True, paged_kv=pool,
        page_table="block", return_lse=False, max_kv_indices=table.numel() * 2 * world,
    )  # fmt: skip
    args = BatchPagedPrefillArgs(
        q=q[own], q_indptr=shares.q_indptr(rank), k_data=k_data, v_data=v_data, block_table=table[shares.requests(rank)],
        kv_lens=shares.kv_lens(rank), o=o,
    )  # fmt: skip
    Plan.select(d).run(args)
    return gathered(shares, o, group)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("world", [2, 3])
def test_rows_of_all_ranks_are_those_of_plain_attention(world, ordered):
    """Also over cached keys: softmax in f64 of every row, whichever rank computes it."""
    g = torch.Generator().manual_seed(1)
    k, v = ([torch.randn(length, KV, DIM, generator=g) for length in LENS] for _ in "kv")
    q = torch.randn(sum(NEW), HEADS, DIM, generator=g)
    found = on_ranks(world, lambda group: prefill(world, group, q, k, v, ordered))
    assert all(torch.equal(one, found[0]) for one in found)
    at = 0
    for b, (n, length) in enumerate(zip(NEW, LENS, strict=True)):
        wide_k, wide_v = (x[b].double().repeat_interleave(HEADS // KV, 1) for x in (k, v))
        scores = torch.einsum("nhd,khd->hnk", q[at : at + n].double(), wide_k) * DIM**-0.5
        ahead = torch.arange(length)[None] > torch.arange(length - n, length)[:, None]
        want = torch.einsum("hnk,khd->nhd", scores.masked_fill(ahead, -math.inf).softmax(-1), wide_v)
        torch.testing.assert_close(found[0][at : at + n].double(), want, rtol=1e-5, atol=1e-6)
        at += n


@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "world", "match"),
    [((3,), (2,), 1, "kv_lens"), ((3,), (), 1, "kv_lens"), ((-1,), (2,), 1, "kv_lens"), ((3,), (3,), 0, "world")],
)
def test_what_makes_no_sense_is_refused(q_lens, kv_lens, world, match):
    with pytest.raises(DescriptorError, match=match):
        PrefillShares.zigzag(q_lens, kv_lens, world)
