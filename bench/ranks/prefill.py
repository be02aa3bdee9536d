"""P10: prefill over ranks with gathered K and V: with the gather before it, and overlapped with it by groups of heads.

Attention of a group of heads runs while K and V of the next group arrive, by NCCL or by copies from the memory of peers. The
received parts are used as the cache: pages stay in the order in which ranks sent them, and block tables describe this order.
The arithmetic of a row, and so its bits, are the same as on one GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bench.ranks.process import Ranks
from bench.ranks.race import race
from opfacade import Plan
from opfacade.plans.attention import (
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    PagedKvCacheDescriptor,
    PrefillShares,
)

HEADS, KV, DIM = 32, 8, 128
TOKENS = (8192, 32768)  # 4 KB of K and V for each: gathers of 34 and 134 MB
GROUPS = (1, 2, 4)  # with one head per part, keys are split at 8192 tokens, which changes bits
Bring = Callable[[int], None]


def beside(ranks: Ranks) -> dict[str, Any]:
    """For each total number of tokens, in us: causal prefill on one GPU, of only this rank's share, and with the gather."""
    ranks.join()
    found: dict[str, Any] = {}
    for tokens in (64,) if ranks.cpu else TOKENS:
        found[str(tokens)] = _raced(ranks, tokens)
        ranks.keep({"tokens": found})
    return {"tokens": found}


class Heads:
    """K and V of all ranks in `groups` parts of heads, and the attention of this rank's rows, part by part."""

    def __init__(self, ranks: Ranks, rows: Rows, groups: int) -> None:
        import torch

        self.groups, heads = groups, KV // groups
        of_own = [torch.stack([x[rows.own, g * heads : (g + 1) * heads] for x in (rows.k, rows.v)]) for g in range(groups)]
        self.sent = torch.stack(of_own)  # [groups, 2, rows, heads, dim]
        self.came = self.sent.new_zeros(groups, ranks.world, *self.sent.shape[1:])
        self.o = torch.zeros_like(rows.q[rows.own])
        self.calls = [self._call(rows, g) for g in range(groups)]

    def _call(self, rows: Rows, g: int) -> Callable[[], None]:
        heads = slice(g * HEADS // self.groups, (g + 1) * HEADS // self.groups)
        k, v = rows.pages_of(self.came[g])
        q = rows.q[rows.own]
        plan = Plan.select(rows.problem.of(len(q), rows.requests, self.groups))
        given = {"q_indptr": rows.q_indptr, "block_table": rows.table, "kv_lens": rows.kv_lens}
        args = BatchPagedPrefillArgs(q=q[:, heads], k_data=k, v_data=v, o=self.o[:, heads], **given)
        return lambda: plan.run(args)

    def attend(self) -> None:
        for call in self.calls:
            call()


class Problem(NamedTuple):
    """The sizes of a prefill. page: tokens per page."""

    tokens: int
    world: int
    cpu: bool

    @property
    def page(self) -> int:
        return 16 if self.cpu else 64

    @property
    def dtype(self) -> str:
        return "float32" if self.cpu else "bfloat16"

    @property
    def pages(self) -> int:
        """The pages of the pool, in which K comes first and V last."""
        return (2 * self.world - 1) * self.tokens // self.world // self.page

    def of(self, rows: int, requests: int, groups: int) -> BatchPagedPrefillDescriptor:
        """The attention of one of `groups` parts of heads."""
        kind = {"float32": "f32", "bfloat16": "bf16"}[self.dtype]
        pool = PagedKvCacheDescriptor(
            num_total_pages=self.pages, page_size=self.page, num_kv_heads=KV // groups, head_dim=DIM, dtype=kind, layout="NHD"
        )
        return BatchPagedPrefillDescriptor(
            batch_size=requests, total_num_rows=rows, num_qo_heads=HEADS // groups, causal=True, paged_kv=pool,
            page_table="block", return_lse=False, max_kv_indices=requests * self.tokens // self.page,
        )  # fmt: skip


def problems(world: int) -> list[BatchPagedPrefillDescriptor]:
    """All attention problems of the probe on GPUs."""
    every = [Problem(tokens, world, False) for tokens in TOKENS]
    return [p.of(p.tokens // world, 2, groups) for p in every for groups in GROUPS] + [p.of(p.tokens, 1, 1) for p in every]


class Rows:
    """The rows of one request over ranks: q, k and v of all rows, which are equal on all ranks, and the rows of this rank."""

    def __init__(self, ranks: Ranks, tokens: int) -> None:
        import torch

        shares = PrefillShares.zigzag((tokens,), (tokens,), ranks.world)
        random = torch.Generator(ranks.device).manual_seed(tokens)
        self.problem = Problem(tokens, ranks.world, ranks.cpu)
        self.page, kind = self.problem.page, getattr(torch, self.problem.dtype)
        shapes = ((tokens, HEADS, DIM), (tokens, KV, DIM), (tokens, KV, DIM))
        self.q, self.k, self.v = (torch.randn(s, generator=random, device=ranks.device).to(kind) for s in shapes)
        self.own = shares.rows(ranks.rank).to(ranks.device)
        self.q_indptr, self.kv_lens = (x(ranks.rank).to(ranks.device) for x in (shares.q_indptr, shares.kv_lens))
        self.requests = len(self.kv_lens)
        pages = len(self.own) // self.page  # pages of a rank's K, which precede the pages of V
        at = shares.places()[:: self.page] // self.page
        table = (at // pages * 2 * pages + at % pages).to(torch.int32).to(ranks.device)
        self.table = table.expand(self.requests, -1).contiguous()
        self.behind = pages
        assert self.problem.pages == (2 * ranks.world - 1) * pages

    def pages_of(self, came: Any) -> tuple[Any, Any]:
        """K and V as pools [2 * world * pages - pages, page, heads, dim], in which the same page id serves both."""
        pool = came.view(-1, self.page, *came.shape[-2:])
        return pool[: -self.behind], pool[self.behind :]

    def whole(self, came: Any) -> tuple[Callable[[], None], Any]:
        """Prefill of all rows on this GPU over the received K and V, and its output."""
        import torch

        k, v = self.pages_of(came)
        o = torch.zeros_like(self.q)
        plan = Plan.select(self.problem.of(len(self.q), 1, 1))
        ends = torch.tensor([0, len(self.q)], dtype=torch.int32, device=o.device)
        given = {"q_indptr": ends, "block_table": self.table[:1], "kv_lens": ends[1:]}
        args = BatchPagedPrefillArgs(q=self.q, k_data=k, v_data=v, o=o, **given)
        return lambda: plan.run(args), o


def _raced(ranks: Ranks, tokens: int) -> dict[str, Any]:
    import torch

    rows = Rows(ranks, tokens)
    made = {groups: Heads(ranks, rows, groups) for groups in GROUPS}
    first = made[1]
    bring = _by_library(first)
    bring(0)
    whole, want = rows.whole(first.came[0])
    whole()
    calls: dict[str, Callable[[], None]] = {
        "all rows on one GPU": whole,
        "share alone": first.attend,
        "gather": lambda: bring(0),
    }
    ways = {"nccl": _by_library, "copies": _by_copies}
    for way, bringer in ways.items():
        for groups, heads in made.items():
            name = f"{way}, {groups} groups of heads" if groups > 1 else f"{way}, gather and then prefill"
            made_by = None if ranks.cpu and way == "copies" else bringer(heads) if way == "nccl" else bringer(heads, ranks)
            if made_by is not None:
                calls[name] = _overlapped(ranks, heads, made_by)
    wrong = []
    for name, call in calls.items():
        heads = next((h for g, h in made.items() if name.split(", ")[-1].startswith(f"{g} ")), first)
        heads.o.zero_()
        call()
        if name not in ("all rows on one GPU", "gather") and not torch.equal(heads.o, want[rows.own]):
            wrong.append(name)
    if wrong:
        return {"wrong": wrong}
    found = {"bytes_in": (first.came.nbytes - first.sent.nbytes)} | race(ranks, calls, 2)
    ideal = found["all rows on one GPU"].get("us", 0.0) / ranks.world
    return found | {"of_ideal": {n: ideal / one["us"] for n, one in found.items() if isinstance(one, dict) and "us" in one}}


def _by_library(heads: Heads) -> Bring:
    import torch.distributed as dist

    def bring(g: int) -> None:
        dist.all_gather_into_tensor(heads.came[g].flatten(0, 1), heads.sent[g])

    return bring


def _by_copies(heads: Heads, ranks: Ranks) -> Bring:
    """Reads from the memory of peers, which copy engines may perform. All ranks synchronise before the first read."""
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm

    shared = symm.empty(heads.sent.shape, dtype=heads.sent.dtype, device=ranks.device)
    handle = symm.rendezvous(shared, dist.group.WORLD.group_name)
    theirs = [handle.get_buffer(r, tuple(shared.shape), shared.dtype) for r in range(ranks.world)]
    shared.copy_(heads.sent)
    ranks.meet()

    def bring(g: int) -> None:
        if g == 0:
            handle.barrier(channel=0)
        for hop in range(ranks.world):
            source = (ranks.rank + hop) % ranks.world
            heads.came[g, source].copy_(theirs[source][g])
        if g == heads.groups - 1:
            handle.barrier(channel=1)

    return bring


def _overlapped(ranks: Ranks, heads: Heads, bring: Bring) -> Callable[[], None]:
    import torch

    def in_order() -> None:
        for g, attend in enumerate(heads.calls):
            bring(g)
            attend()

    def beside() -> None:
        side, here = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(here)
        came = [_brought(side, bring, g) for g in range(heads.groups)]
        for event, attend in zip(came, heads.calls, strict=True):
            here.wait_event(event)
            attend()
        here.wait_stream(side)

    return in_order if ranks.cpu or heads.groups == 1 else beside


def _brought(side: Any, bring: Bring, g: int) -> Any:
    """An event after the arrival of one group of heads."""
    import torch

    with torch.cuda.stream(side):
        bring(g)
        event = torch.cuda.Event()
        event.record(side)
    return event
