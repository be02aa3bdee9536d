"""Prefill over a sharded cached prefix: gathered keys, or queries with a merge, against softmax in f64 on one rank."""

import math

import pytest
import torch

from opfacade import Plan
from opfacade.errors import DescriptorError
from opfacade.plans.attention import (
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillArgs,
    BatchRaggedPrefillDescriptor,
    Heads,
    KvShard,
    PagedKvCacheDescriptor,
    PrefixExchange,
)
from opfacade.plans.collective import CollectiveArgs, CollectiveDescriptor, MergeAcrossArgs, MergeAcrossDescriptor
from tests.distributed import worlds
from tests.support.local_ranks import on_ranks, same

PAGE, HEADS, KV, DIM = 4, 4, 2, 64
NEW, CACHED = (20, 3, 0, 9), (37, 0, 5, 11)
PAGES = 12


def inputs():
    g = torch.Generator().manual_seed(3)
    k, v = ([torch.randn(new + old, KV, DIM, generator=g) for new, old in zip(NEW, CACHED, strict=True)] for _ in "kv")
    return torch.randn(sum(NEW), HEADS, DIM, generator=g), k, v


def want(q, k, v):
    rows, found = iter(q.double()), []
    for b, (new, old) in enumerate(zip(NEW, CACHED, strict=True)):
        wide_k, wide_v = (x[b].double().repeat_interleave(HEADS // KV, 1) for x in (k, v))
        for i in range(new):
            seen = old + i + 1
            scores = torch.einsum("hd,khd->hk", next(rows), wide_k[:seen]) * DIM**-0.5
            found.append(torch.einsum("hk,khd->hd", scores.softmax(-1), wide_v[:seen]))
    return torch.stack(found)


def indptr(lens):
    return torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32)


def ragged(q, k, v, lens):
    """Causal attention of the new rows over these keys, aligned to the bottom right."""
    d = BatchRaggedPrefillDescriptor(
        batch_size=len(NEW), total_num_rows=len(q), total_kv_rows=len(k), num_qo_heads=HEADS, num_kv_heads=KV, head_dim=DIM,
        dtype="f32", causal=True,
    )  # fmt: skip
    args = BatchRaggedPrefillArgs(
        q=q, k=k, v=v, q_indptr=indptr(NEW), kv_indptr=indptr(lens), o=torch.empty_like(q), lse=torch.empty(q.shape[:2])
    )
    Plan.select(d).run(args)
    return args.o, args.lse


def own_pages(rows, shard, rank):
    """The cached tokens of a rank in its own pages, by request; all other entries are NaN."""
    pool = torch.full((len(CACHED) * PAGES, PAGE, KV, DIM), math.nan)
    for b, old in enumerate(CACHED):
        mine = rows[b][:old][shard.owner(torch.arange(old)) == rank]
        pool[b * PAGES : (b + 1) * PAGES].view(-1, KV, DIM)[: len(mine)] = mine
    return pool


def by_queries(shard, group, q, k, v):
    """Every rank attends its shard of the prefix; rank 0 adds the new keys as a second state."""
    lens = shard.local_lens(torch.tensor(CACHED, dtype=torch.int32), group.rank)
    pool = PagedKvCacheDescriptor(
        num_total_pages=len(CACHED) * PAGES, page_size=PAGE, num_kv_heads=KV, head_dim=DIM, dtype="f32", layout="NHD"
    )
    d = BatchPagedPrefillDescriptor(
        batch_size=len(NEW), total_num_rows=len(q), num_qo_heads=HEADS, causal=False, paged_kv=pool, page_table="block"
    )
    o, lse = torch.zeros(2, *q.shape), torch.full((2, *q.shape[:2]), -math.inf)
    args = BatchPagedPrefillArgs(
        q=q, q_indptr=indptr(NEW), k_data=own_pages(k, shard, group.rank), v_data=own_pages(v, shard, group.rank),
        block_table=torch.arange(len(CACHED) * PAGES, dtype=torch.int32).view(len(CACHED), PAGES), kv_lens=lens,
        o=o[0], lse=lse[0],
    )  # fmt: skip
    Plan.select(d).run(args)
    if group.rank == 0:
        new = [torch.cat([x[b][old:] for b, old in enumerate(CACHED)]) for x in (k, v)]
        o[1], lse[1] = ragged(q, *new, NEW)
    merge = MergeAcrossDescriptor(
        world=group.world, states=2, total_num_rows=len(q), num_heads=HEADS, head_dim=DIM, dtype="f32"
    )
    made = MergeAcrossArgs(o_part=o, lse_part=lse, o=torch.empty_like(q), lse=torch.empty(q.shape[:2]), group=group)
    plan = Plan.select(merge)
    if hasattr(group, "reserve"):
        group.reserve([plan])
    plan.run(made)
    return made.o


def by_keys(shard, group, q, k, v):
    """Gathers the prefix from all ranks, then computes attention as on one rank."""
    counts, width = shard.counts(CACHED), 2 * KV * DIM
    mine = [[x[b][:old][shard.owner(torch.arange(old)) == group.rank] for b, old in enumerate(CACHED)] for x in (k, v)]
    own = torch.cat([torch.cat(rows).flatten(1) for rows in mine], 1)
    d = CollectiveDescriptor(world=group.world, kind="all_gather", counts=counts, width=width, dtype="f32")
    x, out = torch.zeros(max(counts), width), torch.empty(sum(counts), width)
    x[: len(own)] = own
    Plan.select(d).run(CollectiveArgs(x=x, out=out, group=group))
    cached = out[shard.places(CACHED)].view(-1, 2, KV, DIM)
    whole, at = [[], []], 0
    for b, old in enumerate(CACHED):
        for i, rows in enumerate((k, v)):
            whole[i] += [cached[at : at + old, i], rows[b][old:]]
        at += old
    lens = [new + old for new, old in zip(NEW, CACHED, strict=True)]
    return ragged(q, torch.cat(whole[0]), torch.cat(whole[1]), lens)[0]


@pytest.mark.parametrize("prefill", [by_keys, by_queries])
@pytest.mark.parametrize(("world", "interleave"), [(2, 1), (3, 4), (5, 6)])
def test_rows_over_a_sharded_prefix_are_those_of_plain_attention(prefill, world, interleave):
    """Prefixes below a page and longer ones; a request without a prefix, and one without new rows."""
    shard, given = KvShard(world=world, interleave=interleave), inputs()
    found = on_ranks(world, lambda group: prefill(shard, group, *given))
    assert same(found)
    torch.testing.assert_close(found[0].double(), want(*given), rtol=1e-5, atol=1e-6)


def over_gloo(rank, pg, folder):
    from opfacade.distributed import Group

    group = Group(pg, timeout_s=30)
    found = by_queries(KvShard(world=pg.size(), interleave=2), group, *inputs())
    return {
        "near": bool(torch.allclose(found.double(), want(*inputs()), rtol=1e-5, atol=1e-6)),
        "sum": float(found.double().sum()),
    }


def test_processes_on_gloo_have_the_same_rows(tmp_path):
    found = worlds.run(tmp_path, 3, over_gloo)
    assert all(own["near"] for own in found.values())
    assert len({own["sum"] for own in found.values()}) == 1


def test_few_new_rows_over_a_long_prefix_send_queries():
    """32 query heads of 128 over 8 of the cache, 4 ranks, 16 bits."""
    shard, heads = KvShard(world=4), Heads(qo=32, kv=8, head_dim=128)
    long = PrefixExchange.of(shard, (8192,), (131072,), heads)
    assert long.keys == 131072 * 8 * 2 * 256 * 3 // 4
    assert long.queries == 8192 * 32 * (256 + 256 + 4) * 3 // 4
    assert long.kind == "queries"
    assert PrefixExchange.of(shard, (8192,), (8192,), heads).kind == "keys"
    assert PrefixExchange.of(shard, (8192, 0), (8192, 10**6), heads).keys == 8192 * 8 * 2 * 256 * 3 // 4
    assert PrefixExchange.of(KvShard(world=1), (8192,), (8192,), heads) == PrefixExchange(0, 0)
    with pytest.raises(DescriptorError, match="cached"):
        PrefixExchange.of(shard, (1,), (), heads)
