"""Probes of decode over a sharded cache, and of draws from a sharded vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.ranks.process import Ranks
from bench.ranks.race import race
from bench.ranks.sums import forms
from opfacade import Plan
from opfacade.backends.cuda.collective import merge_across, sample_across
from opfacade.core.target import Target
from opfacade.distributed import Group
from opfacade.jit.spec import JitSpec
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.plans.collective import (
    MergeAcrossArgs,
    MergeAcrossDescriptor,
    SampleAcrossArgs,
    SampleAcrossDescriptor,
)
from opfacade.plans.sampling import SampleArgs, SampleDescriptor

SHAPES = {"latent": (128, 512), "grouped": (32, 128)}
TOKENS, DRAWS, VOCAB, TOP_K = (1, 8, 16, 64), (64, 256), 131072, 50


def merges(world: int, cpu: bool) -> dict[tuple[str, int], MergeAcrossDescriptor]:
    """The plans by shape and number of tokens; each rank keeps its heads."""
    return {
        (name, tokens): MergeAcrossDescriptor(
            world=world, total_num_rows=tokens, num_heads=heads, head_dim=dim, dtype="bf16", scatter="heads"
        )
        for name, (heads, dim) in ({"grouped": (8, 64)} if cpu else SHAPES).items()
        for tokens in ((1, 3) if cpu else TOKENS)
    }


def merged_alone(d: MergeAcrossDescriptor) -> MergeStatesDescriptor:
    """The merge of all ranks' states on one rank."""
    shape = {"total_num_rows": d.total_num_rows, "num_heads": d.kept_heads, "head_dim": d.head_dim}
    return MergeStatesDescriptor(num_states=d.world, dtype=d.dtype, **shape)


def exchange(ranks: Ranks) -> dict[str, Any]:
    """`merge_across` compared with NCCL's packed exchange and all-gather of the same bytes, without the merge."""
    pg, known = ranks.join(), merges(ranks.world, ranks.cpu)
    group = Group(pg, timeout_s=20, peer_memory=ranks.peer_memory)
    plans = {d: Plan.select(d, target=Target.cpu() if ranks.cpu else group.target) for d in known.values()}
    group.reserve(list(plans.values()))
    found = {}
    for (name, tokens), descriptor in known.items():
        found[f"{name} {tokens}"] = _merged(ranks, group, plans[descriptor])
        ranks.keep({"calls": found})
    return {"link": type(group.link).__name__, "calls": found}


def _merged(ranks: Ranks, group: Group, plan: Plan[MergeAcrossArgs]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    d = plan.descriptor
    assert isinstance(d, MergeAcrossDescriptor)
    parts = [_states(ranks, r, d) for r in range(ranks.world)]
    kept = (d.total_num_rows, d.kept_heads)
    o = torch.zeros(*kept, d.head_dim, dtype=torch.bfloat16, device=ranks.device)
    args = MergeAcrossArgs(
        o_part=parts[ranks.rank][0][None], lse_part=parts[ranks.rank][1][None], o=o, lse=torch.zeros(kept, device=o.device),
        group=group,
    )  # fmt: skip
    plan.run(args)
    own = slice(ranks.rank * d.kept_heads, (ranks.rank + 1) * d.kept_heads)
    lse = torch.stack([part[1][:, own] for part in parts]).double()
    weight = (lse - lse.logsumexp(0)).exp()[..., None]
    want = sum(w * part[0][:, own].double() for w, part in zip(weight, parts, strict=True))
    if not torch.allclose(o.double(), want, rtol=0.01, atol=0.01):
        return {"wrong": "merge_across"}
    size = kept[0] * kept[1] * (d.head_dim * 2 + 4)  # bytes to each rank
    sent = torch.zeros(ranks.world * size, dtype=torch.uint8, device=o.device)
    got, wide = torch.empty_like(sent), sent.new_empty(ranks.world * len(sent))
    merge = _merge_alone(d, parts, ranks.rank, args)

    def swap() -> None:
        dist.all_to_all_single(got, sent, group=group.process_group)

    def run() -> None:
        plan.run(args)

    kernel = plan.sku.impl == "peers"
    calls = {
        f"merge_across, {plan.sku.impl}": run,
        **({f"merge_across, peers, {form}": call for form, call in forms(merge_across, run).items()} if kernel else {}),
        "nccl packed all_to_all + merge": lambda: (swap(), merge()),
        "nccl packed all_to_all alone": swap,
        "nccl packed all_gather alone": lambda: dist.all_gather_into_tensor(wide, sent, group=group.process_group),
    }
    return {"bytes_to_each": size} | race(ranks, calls)


def _merge_alone(
    d: MergeAcrossDescriptor, parts: list[tuple[Any, Any]], rank: int, args: MergeAcrossArgs
) -> Callable[[], None]:
    """Only the merge of states that have arrived, in the best layout that an exchange of packed states can give."""
    import torch

    alone, own = merged_alone(d), slice(rank * d.kept_heads, (rank + 1) * d.kept_heads)
    states = [torch.stack([part[i][:, own] for part in parts]).contiguous() for i in range(2)]
    merge = Plan.select(alone)
    given = alone.args_type(states_o=states[0], states_lse=states[1], o=args.o, lse=args.lse)
    return lambda: merge.run(given)


def _states(ranks: Ranks, rank: int, d: MergeAcrossDescriptor) -> tuple[Any, Any]:
    import torch

    random = torch.Generator().manual_seed(rank * 31 + d.total_num_rows)
    o = torch.randn(d.total_num_rows, d.num_heads, d.head_dim, generator=random).to(torch.bfloat16)
    return o.to(ranks.device), (torch.randn(o.shape[:2], generator=random) * 3).to(ranks.device)


def draws(world: int, cpu: bool) -> dict[int, SampleAcrossDescriptor]:
    shard = (512 if cpu else VOCAB) // world
    return {
        rows: SampleAcrossDescriptor(
            world=world, total_num_rows=rows, vocab=shard * world, shard=shard, top_k=True, max_top_k=TOP_K, top_p=True
        )
        for rows in ((3,) if cpu else DRAWS)
    }


def sampling(ranks: Ranks) -> dict[str, Any]:
    """`sample_across` compared with a gather of logits followed by our `sample`."""
    pg, known = ranks.join(), draws(ranks.world, ranks.cpu)
    group = Group(pg, timeout_s=20, peer_memory=ranks.peer_memory)
    group.reserve([Plan.select(d) for d in known.values()])
    return {"link": type(group.link).__name__, "rows": {str(rows): _drawn(ranks, group, d) for rows, d in known.items()}}


def specs(world: int) -> set[JitSpec]:
    """Compiles the kernels of draws over ranks."""
    here, found = Target.current(), set()
    for d in draws(world, False).values():
        found |= {sample_across.list_spec(d, here), sample_across.draw_spec(d, here)}
    return found


def alone(d: SampleAcrossDescriptor) -> SampleDescriptor:
    return SampleDescriptor(total_num_rows=d.total_num_rows, vocab=d.vocab, top_k=True, max_top_k=TOP_K, top_p=True)


def _drawn(ranks: Ranks, group: Group, d: SampleAcrossDescriptor) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    rows, device = d.total_num_rows, ranks.device
    shards = [torch.randn(rows, d.shard, generator=torch.Generator().manual_seed(r)).to(device) * 3 for r in range(d.world)]
    own = {
        "seed": torch.arange(rows, device=device), "offset": torch.arange(rows, device=device) + 5,
        "temperature": torch.full((rows,), 0.8, device=device), "top_p": torch.full((rows,), 0.9, device=device),
        "top_k": torch.full((rows,), TOP_K, dtype=torch.int32, device=device),
    }  # fmt: skip
    made = [torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(2)]
    valid = torch.zeros(rows, dtype=torch.uint8, device=device)
    across, whole = Plan.select(d), Plan.select(alone(d))
    args = SampleAcrossArgs(logits=shards[ranks.rank], token=made[0], valid=valid, group=group, **own)
    wide = torch.empty(d.world * rows, d.shard, device=device)

    def gathered() -> None:
        dist.all_gather_into_tensor(wide, shards[ranks.rank], group=group.process_group)
        logits = wide.view(d.world, rows, d.shard).transpose(0, 1).reshape(rows, d.vocab)
        whole.run(SampleArgs(logits=logits, token=made[1], valid=valid, **own))

    across.run(args)
    gathered()
    if not torch.equal(*made):
        return {"wrong": f"{int((made[0] != made[1]).sum())} of {rows} tokens differ"}
    return race(ranks, {"sample_across": lambda: across.run(args), "gather + sample": gathered}, 4)
