"""Scenarios for tests of sharded caches: appends below a page, decode, and both prefills, each compared with one rank that has
all keys.
"""

import torch

from opfacade import Plan
from opfacade.core.target import Target
from opfacade.distributed import Group
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    KvShard,
    PagedKvCacheDescriptor,
    PrefillShares,
)
from opfacade.plans.collective import CollectiveArgs, CollectiveDescriptor, MergeAcrossArgs, MergeAcrossDescriptor
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor
from tests.distributed import calls

PAGE, HEADS, KV, DIM, KIND = 16, 8, 2, 128, torch.bfloat16
NEW, CACHED = (200, 7, 0, 130), (0, 33, 5, 64)
LENS = tuple(new + old for new, old in zip(NEW, CACHED, strict=True))
PAGES = -(-max(LENS) // PAGE)  # tokens of a request
NEAR = {"rtol": 0.02, "atol": 0.02}


def run(rank, pg, folder, scenario, cuda):
    """A scenario of this file, with all tensors on the device of a rank."""
    with torch.device("cuda", rank) if cuda else torch.device("cpu"):
        return globals()[scenario](rank, pg)


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


def ends(lens):
    return ints([0, *torch.tensor(lens, device="cpu").cumsum(0).tolist()])


class Caches:
    """K and V of all requests in pages, rows [2, KV, DIM] of new and of cached tokens, and queries of the new tokens."""

    def __init__(self):
        g = torch.Generator("cpu").manual_seed(5)

        def drawn(rows, *shape):
            found = torch.randn(rows, *shape, DIM, generator=g, device="cpu").to(KIND)
            return found.to(torch.get_default_device())

        self.new, self.cached, self.q = drawn(sum(NEW), 2, KV), drawn(sum(CACHED), 2, KV), drawn(sum(NEW), HEADS)
        self.table = torch.arange(len(NEW) * PAGES, dtype=torch.int32).view(len(NEW), PAGES)
        self.d = PagedKvCacheDescriptor(
            num_total_pages=len(NEW) * PAGES, page_size=PAGE, num_kv_heads=KV, head_dim=DIM, dtype="bf16", layout="NHD"
        )
        self.k_data, self.v_data = torch.zeros(2, len(NEW) * PAGES, PAGE, KV, DIM, dtype=KIND)

    def append(self, rows, indptr, lens, table=None):
        table = self.table if table is None else table
        d = PagedKvAppendDescriptor(
            batch_size=len(lens), total_num_rows=len(rows), paged_kv=self.d, page_table="block", max_kv_indices=table.numel()
        )
        Plan.select(d, target=here()).run(
            PagedKvAppendArgs(
                k_new=rows[:, 0], v_new=rows[:, 1], append_indptr=indptr, kv_lens=lens, block_table=table, k_data=self.k_data,
                v_data=self.v_data,
            )
        )  # fmt: skip

    def attend(self, q, q_indptr, lens, table=None, causal=True):
        """o and lse of prefill over these pages."""
        table = self.table if table is None else table
        d = BatchPagedPrefillDescriptor(
            batch_size=len(lens), total_num_rows=len(q), num_qo_heads=HEADS, causal=causal, paged_kv=self.d,
            page_table="block", max_kv_indices=table.numel(), kv_split="off",
        )  # fmt: skip
        args = BatchPagedPrefillArgs(
            q=q, q_indptr=q_indptr, k_data=self.k_data, v_data=self.v_data, block_table=table, kv_lens=lens,
            o=torch.zeros_like(q), lse=torch.zeros(q.shape[:2]),
        )  # fmt: skip
        Plan.select(d, target=here()).run(args)
        return args.o, args.lse

    def filled(self):
        """The same with all tokens on one rank."""
        self.append(self.cached, ends(CACHED), ints(CACHED))
        self.append(self.new, ends(NEW), ints(LENS))
        return self


def here():
    return Target.cpu() if torch.get_default_device().type == "cpu" else Target.current()


def reserved(pg, descriptor):
    """A group for one plan, selected for its links."""
    group = Group(pg, timeout_s=30)
    plan = Plan.select(descriptor, target=group.target if torch.get_default_device().type == "cuda" else Target.cpu())
    group.reserve([plan])
    return group, plan


def prefill(rank, pg):
    """Rows in shares, with k and v in one exchange, appended when they arrive."""
    shares, own = PrefillShares.zigzag(NEW, LENS, pg.size()), Caches()
    d = CollectiveDescriptor(world=pg.size(), kind="all_gather", counts=shares.counts, width=2 * KV * DIM, dtype="bf16")
    group, plan = reserved(pg, d)
    rows, sent = shares.rows(rank), torch.zeros(max(shares.counts), 2 * KV * DIM, dtype=KIND)
    sent[: len(rows)] = own.new[rows].flatten(1)
    came = torch.zeros(sum(shares.counts), 2 * KV * DIM, dtype=KIND)
    plan.run(CollectiveArgs(x=sent, out=came, group=group))
    own.append(own.cached, ends(CACHED), ints(CACHED))
    indptr, lens, requests = shares.gathered()
    own.append(came.view(-1, 2, KV, DIM), indptr, lens, own.table[requests])
    whole = Caches().filled()
    o, _ = own.attend(own.q[rows], shares.q_indptr(rank), shares.kv_lens(rank), own.table[shares.requests(rank)])
    want, _ = whole.attend(whole.q, ends(NEW), ints(LENS))
    group.check()
    same = torch.equal(own.k_data, whole.k_data) and torch.equal(own.v_data, whole.v_data)
    return {
        "cache": same,
        "near": bool(torch.allclose(o.float(), want[rows].float(), **NEAR)),
        "bits": torch.equal(o, want[rows]),
    }


def sharded(shard, rank, rows, before):
    """The cache of one rank, whose shards are smaller than a page: its rows of tokens follow those of `before`."""
    own = Caches()
    for new, counts, lens in ((own.cached, CACHED, CACHED), (own.new, NEW, LENS))[: 1 if before else 2]:
        mine = shard.append_rows(ends(counts), ints(lens), rank, sum(counts))
        own.append(new[mine.rows], mine.append_indptr, mine.kv_lens)
    return own


def decode(rank, pg):
    """One query per request over appends below a page, merged."""
    shard, whole = KvShard(world=pg.size(), interleave=3), Caches().filled()
    own = sharded(shard, rank, whole.new, before=False)
    q = whole.q[: len(NEW)].contiguous()
    merge = MergeAcrossDescriptor(world=pg.size(), total_num_rows=len(q), num_heads=HEADS, head_dim=DIM, dtype="bf16")
    group, plan = reserved(pg, merge)

    def attended(caches, lens, cut):
        d = BatchPagedDecodeDescriptor(batch_size=len(q), num_qo_heads=HEADS, paged_kv=caches.d, page_table="block", shard=cut)
        args = BatchPagedDecodeArgs(
            q=q, k_data=caches.k_data, v_data=caches.v_data, block_table=caches.table, kv_lens=lens,
            o=torch.zeros_like(q), lse=torch.zeros(q.shape[:2]),
        )  # fmt: skip
        Plan.select(d, target=here()).run(args)
        return args.o, args.lse

    part = attended(own, shard.local_lens(ints(LENS), rank), shard)
    want, _ = attended(whole, ints(LENS), None)
    args = MergeAcrossArgs(
        o_part=part[0][None], lse_part=part[1][None], o=torch.zeros_like(q), lse=torch.zeros(q.shape[:2]), group=group
    )
    plan.run(args)
    group.check()
    near = bool(torch.allclose(args.o.float(), want.float(), **NEAR))
    return {"near": near, "o": calls.bits({"o": args.o})["o"], "impl": plan.sku.impl}


def prefix_by_queries(rank, pg):
    """All queries over a shard of the prefix, whose shards are smaller than a page; rank 0 adds the new keys as
    a second state.
    """
    shard, whole = KvShard(world=pg.size(), interleave=3), Caches().filled()
    own = sharded(shard, rank, whole.cached, before=True)
    merge = MergeAcrossDescriptor(
        world=pg.size(), states=2, total_num_rows=sum(NEW), num_heads=HEADS, head_dim=DIM, dtype="bf16"
    )
    group, plan = reserved(pg, merge)
    o = torch.zeros(2, *whole.q.shape, dtype=KIND)
    lse = torch.full((2, *whole.q.shape[:2]), -torch.inf)
    o[0], lse[0] = own.attend(whole.q, ends(NEW), shard.local_lens(ints(CACHED), rank), causal=False)
    if rank == 0:
        fresh = Caches()
        fresh.append(fresh.new, ends(NEW), ints(NEW))
        o[1], lse[1] = fresh.attend(fresh.q, ends(NEW), ints(NEW))
    args = MergeAcrossArgs(o_part=o, lse_part=lse, o=torch.zeros_like(whole.q), lse=torch.zeros(whole.q.shape[:2]), group=group)
    plan.run(args)
    group.check()
    want, _ = whole.attend(whole.q, ends(NEW), ints(LENS))
    near = bool(torch.allclose(args.o.float(), want.float(), **NEAR))
    return {"near": near, "o": calls.bits({"o": args.o[:40]})["o"], "impl": plan.sku.impl}
